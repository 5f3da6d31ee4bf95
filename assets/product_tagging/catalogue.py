"""Makes the sample catalogue: three days of products of a department store, the same every time.

Like a real one, it repeats products under new ids, and a few of its rows are broken: without an id,
without a description, with an id used twice, with a description longer than the model can read.

    python assets/product_tagging/catalogue.py data/catalogue
"""

import random
import sys
from datetime import date, timedelta

import polars as pl
from deltalake import DeltaTable, write_deltalake

FIRST_DAY = date(2026, 11, 2)
DAYS = 3
PRODUCTS_A_DAY = 100

_THINGS = {
    "Casserole": ("cast iron", "for hob and oven", "dishwasher safe"),
    "Chopping board": ("oak", "with a groove for juices", "oiled by hand"),
    "Tea kettle": ("stainless steel", "whistles when it boils", "holds 1.7 litres"),
    "Watering can": ("zinc", "with a fine rose", "balanced when full"),
    "Garden fork": ("carbon steel", "four tines", "ash handle"),
    "Bird house": ("larch", "opens for cleaning", "for tits and sparrows"),
    "Puzzle": ("cardboard", "1,000 pieces", "a map of the old harbour"),
    "Teddy bear": ("cotton", "washes at thirty degrees", "safe from birth"),
    "Building blocks": ("beech wood", "sixty pieces in a bag", "rounded edges"),
    "Jumper": ("merino wool", "ribbed cuffs", "knitted in one piece"),
    "Rain jacket": ("polyester", "taped seams", "folds into its pocket"),
    "Scarf": ("silk", "hand rolled hem", "printed on both sides"),
    "Headphones": ("plastic", "forty hours of music", "folds flat"),
    "Desk lamp": ("aluminium", "dims without steps", "three joints"),
    "Power bank": ("aluminium", "charges two phones", "20,000 mAh"),
    "Fountain pen": ("brass", "medium nib", "takes any ink"),
    "Notebook": ("paper", "192 dotted pages", "opens flat"),
    "Letter tray": ("bamboo", "stacks without screws", "fits A4 and letter"),
}
_BRANDS = ("Hearthside", "Littlewheel", "Norrland", "Maison Ferrand", "Okto", None)
_COLOURS = ("red", "black", "sage", "navy", "natural", "white", "mustard")


def products(day: date, rng: random.Random) -> list[dict[str, object]]:
    """The rows of one day, in the order in which suppliers sent them."""
    rows: list[dict[str, object]] = []
    for number in range(PRODUCTS_A_DAY):
        thing = rng.choice(list(_THINGS))
        material, *details = _THINGS[thing]
        rows.append(
            {
                "product_id": f"P-{day:%d}{number:04d}",
                "day": day.isoformat(),
                "title": f"{thing}, {rng.choice(_COLOURS)}",
                "brand": rng.choice(_BRANDS),
                "description": f"Made of {material}, {rng.choice(details)}.",
            }
        )
    for number in range(10, PRODUCTS_A_DAY, 10):  # sold by another supplier, under an id of its own
        earlier = rows[rng.randrange(number)]
        rows[number] = {**earlier, "product_id": rows[number]["product_id"]}
    broken = rng.sample(range(PRODUCTS_A_DAY), 5)
    rows[broken[0]]["product_id"] = None
    rows[broken[1]]["description"] = None
    rows[broken[2]]["product_id"] = rows[broken[3]]["product_id"]
    rows[broken[2]]["title"] = "Gift card"
    rows[broken[4]]["description"] = "A very long story about how this product was made. " * 300
    return rows


def main(place: str) -> None:
    """Write the catalogue to `place`, unless a catalogue is there."""
    if DeltaTable.is_deltatable(place):
        print(f"{place} is there")
        return
    rng = random.Random(20261102)  # noqa: S311 - repeatable on purpose
    rows = [row for n in range(DAYS) for row in products(FIRST_DAY + timedelta(days=n), rng)]
    write_deltalake(place, pl.DataFrame(rows, infer_schema_length=None), partition_by=["day"])
    print(f"{len(rows)} products of {DAYS} days are in {place}")


if __name__ == "__main__":
    main(sys.argv[1])

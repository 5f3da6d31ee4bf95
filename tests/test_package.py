"""What is shipped, and what importing it costs."""

import subprocess
import sys
import zipfile
from pathlib import Path

from support import REPOSITORY


def test_the_wheel_holds_the_package_only(tmp_path: Path) -> None:
    """No top-level assets, resources or tests reach anybody's site-packages."""
    subprocess.run(
        [
            *(sys.executable, "-m", "build", "--wheel", "--no-isolation"),
            *("--outdir", str(tmp_path), str(REPOSITORY)),
        ],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"acdc_dagster"}
    assert "acdc_dagster/py.typed" in names


def test_the_worker_needs_no_dagster_and_starts_no_engine_on_import() -> None:
    """A worker's image has no Dagster, and vLLM loads only when an engine starts."""
    code = (
        "import sys; import acdc_dagster.inference.process, acdc_dagster.cli;"
        "print({'dagster', 'vllm', 'torch', 'transformers'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"

"""Both sides of the measures of inference; each function is a step of `benchmarks.measure`."""

import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from threading import Event as Flag
from typing import Any

import numpy as np
import polars as pl
import yaml

from acdc_dagster.deployment import Deployment
from acdc_dagster.inference.engines.protocol import Answer
from acdc_dagster.inference.events import Event
from acdc_dagster.inference.left import Left, requests_of
from acdc_dagster.inference.worker import WorkOrder, work
from acdc_dagster.planning.stage import profile, read_plan
from acdc_dagster.prefix.stage import sort_requests
from acdc_dagster.requests.stage import take_in
from acdc_dagster.tables import Tables
from benchmarks.data import MODEL
from benchmarks.measure import Work
from benchmarks.recorded import simulated_plan

_PARTITION = "all"
# One thread, free to move: see resources/local.yaml.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # the last line of output is the result
}
# The KV memory is so small that the order of the requests matters, as it does for a large model.
ENGINE = {
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
    "block_size": 32,
    "kv_cache_gib": 1,
    "dtype": "float32",
}
MOST_TOKENS = 2048  # of prompt and answer


def extra_of(kv_blocks: int) -> dict[str, Any]:
    """Engine arguments that the settings have no field for."""
    return {"enforce_eager": True, "num_gpu_blocks_override": kv_blocks}


def prepared(file: str, folder: str, model: str, kv_blocks: int) -> Work:
    """The first three stages of a job over one request file, tables emptied first."""
    place = Path(folder)

    def prepare() -> dict[str, float]:
        shutil.rmtree(place, ignore_errors=True)
        (place / "assets" / "job").mkdir(parents=True)
        (place / "resources").mkdir()
        environment = {
            "tables": "tables",
            "models": {MODEL: {"path": model, "max_model_len": MOST_TOKENS}},
            "backends": {"local": {"engine": {**ENGINE, "extra": extra_of(kv_blocks)}}},
        }
        (place / "resources" / "local.yaml").write_text(yaml.safe_dump(environment))
        job = {
            "type": "acdc_dagster.BatchInferenceComponent",
            "attributes": {"source": {"requests": file}, "model": MODEL},
        }
        (place / "assets" / "job" / "defs.yaml").write_text(yaml.safe_dump(job))
        deployment = Deployment.load(place, "local")
        declared, found = deployment.job("job"), deployment.model(MODEL)
        tables = _tables(folder)
        take_in(declared, deployment, tables, _PARTITION)
        sort_requests(found, tables, _PARTITION, ENGINE["block_size"])
        told = profile(declared, deployment, found, tables, _PARTITION)
        return {"requests": told.distinct_requests, "bound": told.hit_rate_bound}

    return prepare


def worker(folder: str) -> Work:
    """`acdc worker` without its command line, from a shard without results to its last commit."""
    tables = _tables(folder)
    plan = read_plan(tables, _PARTITION)
    shutil.rmtree(tables.uri("inference"), ignore_errors=True)

    def answer() -> dict[str, Any]:
        event = work(WorkOrder(_PARTITION, 0, "bench"), plan, tables, _ignore, Flag())
        return {
            "seconds": event.seconds,
            "hit_rate": event.cached_tokens / event.prompt_tokens,
            "batch_fill": event.batch_fill,
            "texts": _texts(tables),
        }

    return answer


def bare(folder: str) -> Work:
    """vLLM's engine in this process, given all the same token lists in the same order at once."""
    from acdc_dagster.inference.engines.vllm_engine import VllmEngine

    tables = _tables(folder)
    plan = read_plan(tables, _PARTITION)
    (shard,) = plan.shards
    count = shard.requests
    left = Left(
        "sorted_requests",
        shard,
        np.ones(count, np.bool_),
        np.zeros(count, np.int32),
        np.zeros(count, np.int32),
    )
    requests = list(requests_of(tables, _PARTITION, left, plan.engine.max_num_seqs))

    def answer() -> dict[str, Any]:
        engine = VllmEngine(plan.engine)
        began = time.monotonic()
        for request in requests:
            engine.add(request)
        answers: list[Answer] = []
        while engine.unfinished:
            answers += engine.step()
        seconds = time.monotonic() - began
        prompt = sum(a.prompt_tokens or 0 for a in answers)
        return {
            "seconds": seconds,
            "hit_rate": sum(a.cached_tokens or 0 for a in answers) / prompt,
            "texts": {a.request_hash: a.text for a in answers},
        }

    return answer


def job(file: str, folder: str, model: str, kv_blocks: int) -> Work:
    """All of it, from the request file to the last result; what `vllm run-batch` does."""
    prepare = prepared(file, folder, model, kv_blocks)

    def run() -> dict[str, Any]:
        began = time.monotonic()
        bound = prepare()["bound"]
        prepared_in = time.monotonic() - began
        found = worker(folder)()
        took = time.monotonic() - began
        tables = _tables(folder)
        ids = dict(
            tables.read("request_map", _PARTITION, ["custom_id", "request_hash"]).iter_rows()
        )
        texts = {custom_id: found["texts"][name] for custom_id, name in ids.items()}
        answering = prepared_in + found["seconds"]
        return {**found, "seconds": answering, "with_start": took, "bound": bound, "texts": texts}

    return run


def run_batch(file: str, out: str, model: str, kv_blocks: int) -> Work:
    """`vllm run-batch` on a request file, as its own process."""
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.run_batch"),
        *("-i", file, "-o", out, "--model", model, "--served-model-name", MODEL),
        *("--max-num-seqs", str(ENGINE["max_num_seqs"]), "--dtype", str(ENGINE["dtype"])),
        *("--max-num-batched-tokens", str(ENGINE["max_num_batched_tokens"])),
        *("--block-size", str(ENGINE["block_size"]), "--enforce-eager"),
        *("--num-gpu-blocks-override", str(kv_blocks), "--enable-prefix-caching"),
        *("--max-model-len", str(MOST_TOKENS)),
    ]

    def run() -> dict[str, Any]:
        began = started = time.monotonic()
        lines: list[str] = []
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            for line in process.stdout or ():
                lines.append(line)
                if "Reading batch from" in line:
                    started = time.monotonic()
        if process.returncode != 0:
            raise RuntimeError("".join(lines)[-4000:])
        took = time.monotonic()
        texts: dict[str, str] = {}
        for line in Path(out).read_text().splitlines():
            result = json.loads(line)
            (choice,) = result["response"]["body"]["choices"]
            texts[result["custom_id"]] = choice["message"]["content"]
        return {"seconds": took - started, "with_start": took - began, "texts": texts}

    return run


def simulated(folder: str, rows: int, prompt_tokens: int, long_share: float, step: float) -> Work:
    """A worker over an engine that only takes time; its own peak memory, and how full it kept it.

    Args:
        folder: For the tables; emptied first.
        rows: Requests of 20 tokens' answer, a share of them 50 times as long.
        prompt_tokens: Of each prompt.
        long_share: The share.
        step: Seconds a step of the engine takes.
    """
    shutil.rmtree(folder, ignore_errors=True)
    tables = _tables(folder)
    lengths = np.where(np.random.default_rng(1).random(rows) < long_share, 1000, 20)
    if long_share == 0:
        lengths[:] = 1
    rows_of = _rows(lengths, prompt_tokens)
    tables.replace("sorted_requests", _PARTITION, rows_of, row_bytes=2.0 * prompt_tokens)
    plan = simulated_plan(rows, {"step_seconds": step})
    told: list[Event] = []

    def run() -> dict[str, Any]:
        adapter = "benchmarks.recorded:RecordedEngine"
        order = WorkOrder(_PARTITION, 0, "bench")
        work(order, plan, tables, told.append, Flag(), adapter)
        wanted = 0.95 * int(lengths.sum())
        before_the_end = [e for e in told if e.generated_tokens <= wanted and e.batch_fill]
        return {
            "own_peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
            "batch_fill": before_the_end[-1].batch_fill if before_the_end else None,
        }

    return run


def _rows(lengths: Any, prompt_tokens: int) -> Any:
    random = np.random.default_rng(2)
    for start in range(0, len(lengths), 1024):
        some = lengths[start : start + 1024].tolist()
        yield pl.DataFrame(
            {
                "position": range(start, start + len(some)),
                "request_hash": [f"{at:032x}" for at in range(start, start + len(some))],
                "token_ids": [random.bytes(64) * (prompt_tokens // 32) for _ in some],
                "prompt_tokens": [prompt_tokens // 32 * 32] * len(some),
                "lcp": [0] * len(some),
                "max_tokens": some,
                "sampling": [json.dumps({"max_tokens": length}) for length in some],
                "images": [[]] * len(some),
                "image_tokens": [0] * len(some),
            },
            schema_overrides={"prompt_tokens": pl.Int32, "lcp": pl.Int32, "max_tokens": pl.Int32},
        )


def _tables(folder: str) -> Tables:
    return Tables(str(Path(folder) / "tables"), "job")


def _texts(tables: Tables) -> dict[str, str]:
    return dict(tables.read("inference", _PARTITION, ["request_hash", "text"]).iter_rows())


def _ignore(_: Event) -> None:
    """Nobody listens."""

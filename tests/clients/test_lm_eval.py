"""lm-eval over HTTP gives the scores that it gives for the same model under transformers.

The questions are ours, in the shape of MMLU's and GSM8K's: nothing has to be fetched.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.server_process import running_server
from radixserve.models.cache_folder import is_complete
from radixserve.models.default_model import default_model_folder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # theirs, not ours
]

FACTS = (
    ("What is the capital of France?", ("Paris", "Rome", "Madrid", "Berlin"), 0),
    ("Which planet is known as the Red Planet?", ("Venus", "Mars", "Jupiter", "Saturn"), 1),
    ("What gas do plants absorb?", ("Oxygen", "Helium", "Carbon dioxide", "Neon"), 2),
    ("How many legs does a spider have?", ("Six", "Ten", "Four", "Eight"), 3),
    ("Which is the largest ocean?", ("Pacific", "Atlantic", "Indian", "Arctic"), 0),
    ("Who wrote Hamlet?", ("Dickens", "Shakespeare", "Austen", "Tolstoy"), 1),
    ("What is the freezing point of water in Celsius?", ("100", "50", "0", "-10"), 2),
    ("Which metal is liquid at room temperature?", ("Iron", "Gold", "Tin", "Mercury"), 3),
    ("What is the chemical symbol of gold?", ("Au", "Ag", "Fe", "Go"), 0),
    ("Which organ pumps blood?", ("Liver", "Heart", "Lung", "Kidney"), 1),
    ("In which continent is Egypt?", ("Asia", "Europe", "Africa", "Australia"), 2),
    ("How many days has a leap year?", ("364", "365", "360", "366"), 3),
    ("What do bees make?", ("Honey", "Milk", "Silk", "Wax paper"), 0),
    ("Which animal barks?", ("Cat", "Dog", "Cow", "Duck"), 1),
    ("What colour do blue and yellow make?", ("Red", "Orange", "Green", "Purple"), 2),
    ("Which month comes after May?", ("July", "April", "August", "June"), 3),
    ("How many sides has a triangle?", ("Three", "Four", "Five", "Six"), 0),
    ("Which star is nearest to the Earth?", ("Sirius", "The Sun", "Vega", "Polaris"), 1),
    ("What is H2O?", ("Salt", "Air", "Water", "Sugar"), 2),
    ("What is the capital of Japan?", ("Seoul", "Beijing", "Bangkok", "Tokyo"), 3),
    ("Which instrument has black and white keys?", ("Piano", "Drum", "Flute", "Harp"), 0),
    ("What is the opposite of hot?", ("Warm", "Cold", "Dry", "Loud"), 1),
    ("How many minutes has an hour?", ("Ten", "Thirty", "Sixty", "Ninety"), 2),
    ("Which of these is a fruit?", ("Carrot", "Potato", "Onion", "Apple"), 3),
)
SUMS = tuple(
    (a, b, a + b)
    for a, b in (
        (2, 3),
        (7, 8),
        (12, 9),
        (20, 31),
        (5, 14),
        (40, 2),
        (1, 6),
        (9, 9),
        (15, 25),
        (3, 30),
    )
)
SHOT = "Question: Ann has 4 pens and buys 3 more. How many pens has she?\nAnswer: 7\n\n"


def write_tasks(folder: Path) -> None:
    """Write two tasks and their questions."""
    choices = [{"question": q, "choices": list(c), "answer": a} for q, c, a in FACTS]
    sums = [
        {
            "question": f"Ann has {a} pens and buys {b} more. How many pens has she?",
            "answer": str(c),
        }
        for a, b, c in SUMS
    ]
    for name, rows in (("facts", choices), ("sums", sums)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    common = "dataset_path: json\ntest_split: test\nmetadata:\n  version: 1\n"
    (folder / "facts.yaml").write_text(
        f"task: facts\n{common}dataset_kwargs:\n  data_files:\n    test: {folder}/facts.jsonl\n"
        "output_type: multiple_choice\n"
        'doc_to_text: "Question: {{question}}\\nAnswer:"\n'
        'doc_to_choice: "{{choices}}"\ndoc_to_target: "{{answer}}"\n'
        "metric_list:\n  - metric: acc\n  - metric: acc_norm\n",
        encoding="utf-8",
    )
    (folder / "sums.yaml").write_text(
        f"task: sums\n{common}dataset_kwargs:\n  data_files:\n    test: {folder}/sums.jsonl\n"
        "output_type: generate_until\n"
        f"doc_to_text: {json.dumps(SHOT + 'Question: {{question}}' + chr(10) + 'Answer:')}\n"
        'doc_to_target: " {{answer}}"\n'
        'generation_kwargs:\n  until: ["\\n"]\n  max_gen_toks: 12\n  do_sample: false\n'
        "metric_list:\n  - metric: exact_match\n    ignore_punctuation: true\n",
        encoding="utf-8",
    )


def evaluate(tasks: Path, kind: str, model_args: dict[str, Any]) -> dict[str, Any]:
    """Run both tasks; return the scores and every sample's answers."""
    lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    from lm_eval.tasks import TaskManager  # type: ignore[import-untyped]

    found = lm_eval.simple_evaluate(
        model=kind,
        model_args=model_args,
        tasks=["facts", "sums"],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
        batch_size=1,
        random_seed=1,
    )
    return {
        "scores": {
            task: {name: value for name, value in scores.items() if name.endswith(",none")}
            for task, scores in found["results"].items()
        },
        "samples": {
            task: [sample["filtered_resps"] for sample in sorted(rows, key=lambda r: r["doc_id"])]
            for task, rows in found["samples"].items()
        },
    }


@pytest.fixture
def model_folder() -> Path:
    folder = default_model_folder()
    if not is_complete(folder):
        pytest.skip(f"the default model's weights are not in {folder}: run 'radixserve pull'")
    return folder


async def test_lm_eval_gives_the_same_scores_as_under_transformers(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    write_tasks(tmp_path)

    flags = ["--dtype", "float32", "--served-model-name", "served"]
    async with running_server(flags) as url:
        over_http = {
            "model": "served",
            "base_url": f"{url}/v1/completions",
            "tokenizer_backend": "huggingface",
            "tokenizer": str(model_folder),
            "num_concurrent": 8,
            "max_retries": 1,
            "max_length": 1024,
        }
        served = await asyncio.to_thread(evaluate, tmp_path, "local-completions", over_http)
    under_transformers = {"pretrained": str(model_folder), "dtype": "float32", "device": "cpu"}
    expected = await asyncio.to_thread(evaluate, tmp_path, "hf", under_transformers)

    assert served["scores"] == expected["scores"]
    assert served["samples"]["sums"] == expected["samples"]["sums"]
    for ours, theirs in zip(served["samples"]["facts"], expected["samples"]["facts"], strict=True):
        for (our_sum, our_greedy), (their_sum, their_greedy) in zip(ours, theirs, strict=True):
            assert our_sum == pytest.approx(their_sum, abs=1e-3)
            assert our_greedy == their_greedy

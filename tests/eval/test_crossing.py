"""docs/crossing.md says what its packed answers say."""
import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_s_table_is_that_of_the_packed_answers():
    """Every line of the table, recomputed; bits of answers are read from the left, without the seen ones."""
    spec = importlib.util.spec_from_file_location("crossing", DOCS / "results" / "crossing.py")
    crossing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(crossing)
    rows = crossing.load()
    text = (DOCS / "crossing.md").read_text(encoding="utf-8").partition("Accuracies of young")[0]
    assert {line for line in text.splitlines() if line.startswith(("| `", "| *"))} == set(crossing.page(rows))
    first = (DOCS / "results" / "crossing.jsonl").read_text().partition('"code_o": "')[2].partition('"')[0]
    bits = "".join(f"{int(digit, 16):04b}" for digit in first)[crossing.SEEN:]
    assert rows[0]["code_o"] == bits.count("1") / 100

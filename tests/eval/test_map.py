"""docs/map.md says what its packed runs say."""
from pathlib import Path

from eval.population import ablation

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_s_block_is_what_its_command_prints(capsys):
    ablation.main(["--from", str(DOCS / "results" / "niches"), "--reference", "niches-add", "--arms",
                   "generalists,single-long,crossed", "--measure", "deployed"])
    printed = capsys.readouterr().out.strip()
    assert f"```text\n{printed}\n```" in (DOCS / "map.md").read_text(encoding="utf-8")

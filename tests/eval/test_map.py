"""docs/map.md says what its packed runs say."""
import re
from pathlib import Path

from eval.population import ablation

PAGE = Path(__file__).resolve().parents[2] / "docs" / "map.md"


def test_the_page_s_blocks_are_what_their_commands_print(capsys, monkeypatch):
    monkeypatch.chdir(PAGE.parents[1])
    blocks = re.findall(r"```sh\npython -m eval.population.ablation (.+)\n```\n\n```text\n((?:.*\n)*?)```", PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 5
    for words, block in blocks:
        ablation.main(words.split())
        assert capsys.readouterr().out.strip() == block.strip()

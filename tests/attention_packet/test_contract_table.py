"""Every line of the packet contract has a test, and the page names it."""

from pathlib import Path

from tests.attention_packet.contract_table import PAGE, find_tests, page_with_table

FOLDER = Path(__file__).parent.parent


def test_every_line_has_a_test() -> None:
    missing = {f"PKT-{number}" for number in range(1, 72)} ^ set(find_tests(FOLDER))
    assert missing == set()


def test_table_is_up_to_date(repository: Path, update_golden: bool) -> None:
    page = repository / PAGE
    text = page.read_text(encoding="utf-8")
    if update_golden:
        page.write_text(page_with_table(text, FOLDER), encoding="utf-8")
    assert page.read_text(encoding="utf-8") == page_with_table(text, FOLDER)

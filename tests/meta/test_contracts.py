"""Contract lines and the tests that carry their numbers stay in step."""

import ast

from tests.meta.contracts import _marked, declared_lines, is_enforced, lines_with_tests


def test_every_enforced_line_has_a_test() -> None:
    missing = set(filter(is_enforced, declared_lines())) - set(lines_with_tests())
    assert not missing


def test_every_line_that_a_known_page_could_hold_is_declared() -> None:
    declared = declared_lines()
    pages = {line.partition("-")[0] for line in declared}
    used = {line for line in lines_with_tests() if line.partition("-")[0] in pages}
    assert used <= set(declared)


def test_marker_is_found_with_several_lines() -> None:
    source = '@pytest.mark.contract("XRAY-1", "XRAY-2")\ndef test_x(): ...'
    assert _marked(ast.parse(source)) == {"XRAY-1", "XRAY-2"}

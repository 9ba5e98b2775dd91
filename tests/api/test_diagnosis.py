"""Earlier reports are read whole, or refused."""

from pathlib import Path

import pytest

from cke.api.diagnosis import read_second
from cke.errors import CkeError


@pytest.mark.contract("XRAY-25")
def test_an_edited_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text('{"schema": "cke.xray_orchestration_report"}')
    with pytest.raises(CkeError, match=r"CKE730\]: expected an X-Ray report"):
        read_second(path)

"""The table of published JSON Schemas: the id of each on-disk format, and its struct.

`python -m cke.schemas.published` writes ``schemas/json/`` from it; a test compares. Add a row here
when a format gets its struct.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from cke.schemas.attention_packet import (
    Analysis,
    Mirror,
    Packet,
    PacketMeasurement,
    RunEvidence,
    Snapshot,
)
from cke.schemas.attention_sensitivity import Document as SensitivityDocument
from cke.schemas.capture_neutrality import Study
from cke.schemas.decode_trace import DecodeTrace
from cke.schemas.diagnosis import Document as DiagnosisDocument
from cke.schemas.differential import (
    Calibration,
    LayerLocalization,
    PrefixReproduction,
    StageLocalization,
    TokenLocalization,
)
from cke.schemas.layer_trace import LayerTrace
from cke.schemas.manifest import Manifest
from cke.schemas.numerical_report import Document
from cke.schemas.oracle_mapping import OracleMapping
from cke.schemas.probe import ProbePacket
from cke.schemas.provider_gate import Document as ProviderGateDocument
from cke.schemas.ranking_report import Document as RankingDocument
from cke.schemas.run_report import PrefixBinding, RunReport
from cke.schemas.snapshot import RunSnapshot
from cke.schemas.state_report import Document as StateDocument
from cke.schemas.trace import Trace
from cke.schemas.validator_selftest import Document as SelftestDocument
from cke.schemas.verification_report import VerificationReport

FORMATS: dict[str, type[msgspec.Struct]] = {
    "cke.oracle_mapping": OracleMapping,
    "cke.xray_numerical_report": Document,
    "cke.xray_probe_packet": ProbePacket,
    "cke.checkpoint_manifest.v1": Manifest,
    "cke.incoming-kv-mirror.v1": Mirror,
    "cke.xray_attention_sensitivity": SensitivityDocument,
    "cke.xray_execution_state_report": StateDocument,
    "cke.xray_monotonic_provider_gate": ProviderGateDocument,
    "cke.xray_orchestration_report.v1": DiagnosisDocument,
    "cke.xray_ranking_report": RankingDocument,
    "cke.xray_validator_selftest.v1": SelftestDocument,
    "cke.packet-measurement.v1": PacketMeasurement,
    "cke.packet-run-evidence.v1": RunEvidence,
    "cke.xray.capture-neutrality.v1": Study,
    "cke.xray_execution_trace": Trace,
    "darkbloom.attention-analysis.v1": Analysis,
    "darkbloom.attention-metadata.v1": Snapshot,
    "darkbloom.attention-packet.v1": Packet,
    "lis.execution_artifact.v1.calibration_preflight": Calibration,
    "lis.execution_artifact.v1.decode_trace": DecodeTrace,
    "lis.execution_artifact.v1.intra_layer_localization": StageLocalization,
    "lis.execution_artifact.v1.layer_localization": LayerLocalization,
    "lis.execution_artifact.v1.layer_trace": LayerTrace,
    "lis.execution_artifact.v1.prefix_policy_reproduction": PrefixReproduction,
    "lis.execution_artifact.v1.run_report": RunReport,
    "lis.execution_artifact.v1.token_localization": TokenLocalization,
    "lis.execution_artifact.v1.snapshot": RunSnapshot,
    "lis.forced_prefix_binding.v1": PrefixBinding,
    "lis.verification_report.v1": VerificationReport,
}


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a published format."""
    schema = msgspec.json.schema(FORMATS[name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **schema}


def schema_text(name: str) -> str:
    """The committed text of a schema: sorted keys, two spaces, one newline at the end."""
    return json.dumps(json_schema(name), indent=2, sort_keys=True) + "\n"


def write_schemas(folder: Path) -> None:
    """Make the folder hold exactly the published schemas."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.json"):
        stale.unlink()
    for name in FORMATS:
        folder.joinpath(f"{name}.json").write_text(schema_text(name), encoding="utf-8")


if __name__ == "__main__":
    write_schemas(Path(__file__).parent / "json")

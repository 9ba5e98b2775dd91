"""`python -m cke.attention_packet PACKET_JSON --output NEW_REPORT`: NumPy and msgspec suffice."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cke.attention_packet.analyze import analyze
from cke.attention_packet.report import check_output, encode_report, write_new
from cke.errors import CkeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Analyse one packet and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cke.attention_packet")
    parser.add_argument("packet_json", type=Path)
    parser.add_argument("--output", type=Path, required=True, help="a report that does not exist")
    parser.add_argument("--mirror", type=Path, help="mirror.json of an incoming-KV mirror")
    options = parser.parse_args(arguments)
    return analyze_to_file(options.packet_json, options.output, options.mirror)


def analyze_to_file(packet_json: Path, output: Path, mirror: Path | None = None) -> int:
    """Write the report of every outcome; say on stderr why there is no reference."""
    try:
        check_output(output)
        outcome = analyze(packet_json, mirror)
        write_new(output, encode_report(outcome.analysis))
    except CkeError as error:
        print(error, file=sys.stderr)
        return 2
    analysis = outcome.analysis
    if analysis.refusal:
        place = ": ".join(part for part in (analysis.refusal.file, analysis.refusal.path) if part)
        text = f"error[{analysis.refusal.code}]: {analysis.refusal.message}"
        print(f"{place}: {text}" if place else text, file=sys.stderr)
    for reason in analysis.inconclusive_reasons:
        print(f"inconclusive: {reason}", file=sys.stderr)
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())

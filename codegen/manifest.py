"""The manifest of a package: every decision of a build, as canonical JSON."""

from collections.abc import Mapping

import msgspec
import rfc8785

from cke.codegen.checkpoints import call_checkpoints
from cke.codegen.levels import Levels
from cke.schemas.manifest import SCHEMA, VERSION, Manifest


def make_manifest(
    levels: Levels, kernels: Mapping[str, str], lines: Mapping[str, Mapping[int, str]]
) -> Manifest:
    """Return the manifest; `kernels` are hashes by file, `lines` circuit lines by module."""
    build = levels.build
    return Manifest(
        schema=SCHEMA,
        version=VERSION,
        circuit=build.circuit,
        circuit_version=build.version,
        parents=build.parents,
        sources=build.sources,
        kernels=dict(kernels),
        dtype=build.dtype,
        capture=build.capture,
        graph=levels.graph,
        calls=levels.calls,
        checkpoints=call_checkpoints(levels.calls),
        bindings=build.bindings,
        coverage=build.coverage,
        resolutions=build.resolutions,
        givens=build.givens,
        lines={
            module: {str(line): place for line, place in sorted(table.items())}
            for module, table in sorted(lines.items())
        },
    )


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the canonical JSON (RFC 8785), a newline after it: equal manifests, equal bytes."""
    return bytes(rfc8785.dumps(msgspec.to_builtins(manifest, str_keys=True))) + b"\n"

"""Semantic weights → tensor keys of the file, from its header alone; complete both ways.

Every weight of every step finds its tensor, and every tensor of the file is used, ignored by
name, or an error. Without tensors (a config alone) the first source of each clause is taken.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from cke.codegen import layouts
from cke.codegen.layouts import Layout, LayoutError
from cke.codegen.stored_layouts import declared_layout, written_layout
from cke.dsl.elaborated import Clause, Elaboration, Step, WeightUse
from cke.errors import CkeError, Diagnostic, Note
from cke.schemas.bindings import Coverage, Transform, WeightBinding
from cke.schemas.ir import Value
from cke.schemas.model_source import ModelSource, TensorInfo

BRACES = re.compile(r"\{(\w+)\}")
LISTED = 12


class Bound(msgspec.Struct, frozen=True):
    """What binding gives: bindings, their coverage, and each step's weights by parameter."""

    bindings: tuple[WeightBinding, ...]
    coverage: Coverage
    weights: tuple[dict[str, str], ...]


def bind_weights(elaboration: Elaboration, source: ModelSource, ignored: Iterable[str]) -> Bound:
    """Return the bindings of an elaboration to a model; all errors are raised together."""
    binder = _Binder(source)
    weights = []
    for step in elaboration.steps:
        function = elaboration.functions[step.function]
        weights.append({use.name: binder.bind(use, step) for use in function.weights})
    coverage = binder.cover(tuple(ignored))
    if binder.errors:
        raise CkeError(binder.errors)
    return Bound(tuple(binder.bindings.values()), coverage, tuple(weights))


def name_map(elaboration: Elaboration, format: Literal["hf", "gguf"]) -> dict[str, tuple[str, ...]]:
    """Return the tensor keys of every weight in `format`, each by its first spelling.

    The elaboration carries the sources of that format. A weight without one is left out; a tied
    one has the keys of the weight that it is.
    """
    binder = _Binder(_NamesOnly(format))
    for step in elaboration.steps:
        for use in elaboration.functions[step.function].weights:
            binder.bind(use, step)
    found: dict[str, tuple[str, ...]] = {}
    for semantic, binding in binder.bindings.items():
        while binding.tied_to in binder.bindings:
            binding = binder.bindings[binding.tied_to]
        if binding.sources:
            found[semantic] = binding.sources
    return found


class _NamesOnly:
    """A source without tensors, so that the first spelling of each clause is taken."""

    def __init__(self, format: Literal["hf", "gguf"]) -> None:
        self.format: Literal["hf", "gguf"] = format
        self.name: str = format
        self.config: dict[str, Value] = {}
        self.tensors: dict[str, TensorInfo] | None = None

    def values(self, key: str) -> list[float]:
        raise AssertionError(f"nothing reads the values of `{key}` here")


class _Found(msgspec.Struct, frozen=True):
    clause: Clause
    keys: tuple[str, ...]
    looped: bool


class _Binder:
    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self._tensors: Mapping[str, TensorInfo] | None = source.tensors
        self.bindings: dict[str, WeightBinding] = {}
        self.errors: list[Diagnostic] = []
        self._used: dict[str, list[str]] = {}
        self._superseded: dict[str, str] = {}
        self._canonical: dict[object, str] = {}

    def bind(self, use: WeightUse, step: Step) -> str:
        """Bind one weight; return the semantic name of its values."""
        prefix = "" if step.layer is None else f"layer.{step.layer}."
        semantic = prefix + use.name
        if semantic in self.bindings:
            return semantic
        if use.tied is not None:
            self._tie(use, prefix, semantic, step)
            return semantic
        found = self._find(use, step, semantic)
        if found is None:
            return semantic
        transforms = self._transforms(use, found, semantic)
        key = (found.keys, msgspec.json.encode(transforms), use.type)
        first = self._canonical.setdefault(key, semantic)
        tied = None if first == semantic else first
        self.bindings[semantic] = WeightBinding(
            semantic=semantic,
            type=use.type,
            sources=found.keys if tied is None else (),
            transforms=transforms if tied is None else (),
            tied_to=tied,
            span=use.span,
        )
        for name in found.keys:
            self._used.setdefault(name, []).append(semantic)
        return semantic

    def _tie(self, use: WeightUse, prefix: str, semantic: str, step: Step) -> None:
        target = f"{prefix}{use.tied}"
        self.bindings[semantic] = WeightBinding(
            semantic=semantic,
            type=use.type,
            sources=(),
            transforms=(),
            tied_to=target,
            span=use.span,
        )
        for clause in use.clauses:
            for name in self._filled(clause, step):
                self._superseded[name] = f"tied to `{target}`"

    def _filled(self, clause: Clause, step: Step) -> list[str]:
        """Return the names of a clause with the layer and the schedule's values in place."""
        values: dict[str, Value] = {**step.row, "L": step.layer}
        return [
            BRACES.sub(lambda m: str(values[m[1]]) if values.get(m[1]) is not None else m[0], name)
            for name in clause.names
        ]

    def _find(self, use: WeightUse, step: Step, semantic: str) -> _Found | None:
        tried: list[str] = []
        for clause in use.clauses:
            for name in self._filled(clause, step):
                axis = BRACES.search(name)
                if axis is None:
                    tried.append(name)
                    if self._tensors is None or name in self._tensors:
                        return _Found(clause, (name,), looped=False)
                    continue
                keys = self._loop(name, axis[1], use)
                tried.append(keys[0] if keys else name)
                if keys and (self._tensors is None or keys[0] in self._tensors):
                    return self._complete(clause, keys)
        self._missing(use, semantic, tried)
        return None

    def _loop(self, name: str, axis: str, use: WeightUse) -> tuple[str, ...]:
        count = use.sizes.get(axis, 0)
        return tuple(name.replace("{" + axis + "}", str(index)) for index in range(count))

    def _complete(self, clause: Clause, keys: tuple[str, ...]) -> _Found | None:
        absent = [] if self._tensors is None else [k for k in keys if k not in self._tensors]
        if not absent:
            return _Found(clause, keys, looped=True)
        self._report(
            "CKE453",
            absent[0],
            f"expected {len(keys)} tensors from `{keys[0]}` on, this one is missing",
            Note("declared at", clause.span),
        )
        return None

    def _missing(self, use: WeightUse, semantic: str, tried: list[str]) -> None:
        if not use.clauses:
            message = f"`{semantic}` has no {self._source.format} source"
            fix = f'add `{self._source.format} "…"` to its row'
            self._report(
                "CKE454", None, message, Note("declared at", use.span), Note(fix, None, "help")
            )
            return
        self._report(
            "CKE450",
            None,
            f"no tensor for `{semantic}`: tried {', '.join(f'`{name}`' for name in tried)}",
            Note("declared at", use.span),
        )

    def _transforms(self, use: WeightUse, found: _Found, semantic: str) -> tuple[Transform, ...]:
        axes = use.type.axes
        looped = axes[:1] if found.looped else ()
        layout = self._layout(use, found, looped)
        sizes = {**use.sizes, **dict(zip(axes, map(int, use.type.shape), strict=True))}
        steps: list[Transform] = []
        if found.looped:
            steps.append(Transform(kind="stack", arguments={"axis": 0}, purpose="experts"))
        clause = found.clause
        try:
            self._check_shape(use, found, layout, sizes, semantic)
            steps += self._moves(use, found, layout, sizes)
        except LayoutError as problem:
            span = clause.span if clause.layout is None else clause.layout.span
            self.errors.append(Diagnostic(code="CKE243", span=span, message=str(problem)))
        for name, values in clause.transforms:
            if name == "add" and values == (0.0,):
                continue
            arguments = {"value": values[0]} if values else {}
            purpose = "norm_offset" if name == "add" else "stored_form"
            steps.append(Transform(kind=name, arguments=arguments, purpose=purpose))
        return tuple(steps)

    def _moves(
        self, use: WeightUse, found: _Found, layout: Layout, sizes: Mapping[str, int]
    ) -> tuple[Transform, ...]:
        axes, clause = use.type.axes, found.clause
        stacked = (((layouts.Axis(axes[0]),),), *layout) if found.looped else layout
        if clause.layout is None and clause.members == 1:
            if layouts.file_shape(stacked, sizes) == use.type.shape:
                return ()
            shape = {"shape": [*use.type.shape]}
            return (Transform(kind="reshape", arguments=shape, purpose="axes"),)
        return layouts.transforms(stacked, axes, sizes, clause.member, clause.members)

    def _layout(self, use: WeightUse, found: _Found, looped: tuple[str, ...]) -> Layout:
        if found.clause.layout is not None:
            written = written_layout(found.clause.layout)
            return layouts.without_axes(written, use.dropped) if use.dropped else written
        return declared_layout(tuple(group for group in use.grouped if group != looped))

    def _check_shape(
        self,
        use: WeightUse,
        found: _Found,
        layout: Layout,
        sizes: Mapping[str, int],
        semantic: str,
    ) -> None:
        if self._tensors is None:
            return
        expected = layouts.file_shape(layout, sizes)
        for name in found.keys:
            got = self._tensors[name].shape
            if got == expected:
                continue
            text = layouts.describe(layout)
            self._report(
                "CKE451",
                name,
                f"expected {_shape(expected)} for `{semantic}` as {text}, got {_shape(got)}",
                Note("declared at", use.span),
                Note("the config and the weights disagree, or the layout is another", None, "help"),
            )
            return

    def cover(self, patterns: tuple[str, ...]) -> Coverage:
        """Return what became of every tensor; one that nothing accounts for is an error."""
        used = {name: tuple(semantics) for name, semantics in sorted(self._used.items())}
        ignored: dict[str, str] = {}
        stray: list[str] = []
        compiled = [(pattern, _pattern(pattern)) for pattern in patterns]
        for name in sorted(self._tensors or ()):
            if name in used:
                continue
            by = next((text for text, pattern in compiled if pattern.fullmatch(name)), None)
            by = by or self._superseded.get(name)
            if by is None:
                stray.append(name)
            else:
                ignored[name] = by
        for name in stray[:LISTED]:
            self._report(
                "CKE452",
                name,
                "this tensor is neither used nor ignored",
                Note("bind it in the circuit, or add it to `ignore tensors`", None, "help"),
            )
        if len(stray) > LISTED:
            self._report(
                "CKE452", None, f"{len(stray) - LISTED} more tensors are not accounted for"
            )
        return Coverage(used=used, ignored=ignored)

    def _report(self, code: str, path: str | None, message: str, *notes: Note) -> None:
        diagnostic = Diagnostic(
            code=code, file=self._source.name, path=path, message=message, notes=notes
        )
        if diagnostic not in self.errors:
            self.errors.append(diagnostic)


def _pattern(text: str) -> re.Pattern[str]:
    """Return the pattern of an ignore row: `{*}` is any text, `{L}` a number."""
    parts = re.split(r"(\{[\w*]+\})", text)
    return re.compile(
        "".join(
            ".+" if part == "{*}" else r"\d+" if part.startswith("{") else re.escape(part)
            for part in parts
        )
    )


def _shape(shape: Iterable[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"

"""Points of the taxonomies in use, and the checkpoints that statements attach to edges."""

from collections.abc import Iterable

from cke.dsl import syntax
from cke.dsl.axes import axis_names
from cke.dsl.elaborate_errors import error
from cke.dsl.names import did_you_mean
from cke.dsl.scope import Instance
from cke.errors import Note
from cke.schemas.ir import Checkpoint


class Points:
    """Every declared point by name; without `@version` the first version is meant."""

    def __init__(self, taxonomies: Iterable[syntax.Taxonomy]) -> None:
        self._rows: dict[tuple[str, int], tuple[str, syntax.TaxonomyRow]] = {}
        for taxonomy in taxonomies:
            for row in taxonomy.rows:
                version = taxonomy.version if row.version is None else row.version
                self._rows.setdefault((row.name, version), (taxonomy.name, row))
        self.order = {name: place for place, (name, _) in enumerate(self._rows)}

    def checkpoint(
        self, point: syntax.Point, instance: Instance, axes: tuple[str, ...], role: str | None
    ) -> Checkpoint:
        """Return the checkpoint of an edge; its axes must be the taxonomy's."""
        taxonomy, row, version = self._row(point)
        expected = _renamed(axis_names(row.shape.axes), instance)
        got = axes[: len(expected)] if role is not None else axes
        if got != expected:
            raise error(
                "CKE252",
                point.span,
                f"point `{point.name}` expects [{', '.join(expected)}], got [{', '.join(axes)}]",
                Note("declared at", row.span),
            )
        name = f"{instance.path}.{point.name}" if instance.path else point.name
        return Checkpoint(
            name=name,
            point=point.name,
            taxonomy=taxonomy,
            version=version,
            instance=instance.path,
            role=role,
        )

    def fits(self, point: syntax.Point, instance: Instance, axes: tuple[str, ...]) -> bool:
        """Tell whether an edge of these axes may carry the point."""
        _, row, _ = self._row(point)
        return axes == _renamed(axis_names(row.shape.axes), instance)

    def _row(self, point: syntax.Point) -> tuple[str, syntax.TaxonomyRow, int]:
        versions = sorted(version for name, version in self._rows if name == point.name)
        if not versions:
            places = {name: row.span for (name, _), (_, row) in self._rows.items()}
            raise error(
                "CKE251",
                point.span,
                f"no taxonomy in use declares the point `{point.name}`",
                *did_you_mean(point.name, places),
            )
        version = versions[0] if point.version is None else point.version
        if version not in versions:
            listed = ", ".join(map(str, versions))
            raise error(
                "CKE251",
                point.span,
                f"point `{point.name}` has version {listed}, got {version}",
            )
        taxonomy, row = self._rows[(point.name, version)]
        return taxonomy, row, version


def _renamed(axes: tuple[str, ...], instance: Instance) -> tuple[str, ...]:
    renames = {
        rename.axis.name: tuple(
            axis_names((syntax.Dimension(span=rename.span, terms=(rename.axes,)),))
        )
        for rename in instance.block.renames
    }
    return tuple(name for axis in axes for name in renames.get(axis, (axis,)))

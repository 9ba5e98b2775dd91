"""The types of generated code: weights, state and captures of one function.

A function takes `w`, its weights by parameter name, and `state`, its slots by name; a slot maps
lanes, and for a cache `positions` and `count`, to arrays.
"""

from collections.abc import Mapping

from jax import Array

Weights = Mapping[str, Array]
Slot = Mapping[str, Array]
State = Mapping[str, Slot]
Captured = dict[str, Array]

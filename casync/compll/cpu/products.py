"""Matrix products that read the gradient, or are delivered, while they are computed.

A gradient that only a matmul reads is not written to memory first, and a product that is only delivered is nowhere
else: of a whole gradient each would be as large as the gradient is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from casync.compll.ir.graph import UNIT, Memory, Value
from casync.compll.ir.program import Block, Call, Deliver, Pass, Program, Store, readers

__all__ = ["Product", "fused"]


@dataclass(frozen=True, eq=False)
class Product(Call):
    """A matmul whose left side is `gradient`, and not among the `arrays`; or that `delivers` and makes nothing."""

    gradient: Value | None = None
    delivers: bool = False


def fused(program: Program) -> Program:
    """The program with such products in place of the passes around them."""
    steps = list(program.block.steps)
    for call in [step for step in steps if isinstance(step, Call) and step.operator == "matmul"]:
        left, product = call.arrays[0], call.makes[0]
        assert isinstance(product, Memory)
        before = next((step for step in steps if isinstance(step, Pass) and _stores_gradient(step, left)), None)
        after = next((step for step in steps if isinstance(step, Pass) and _delivers(step, product)), None)
        if before is not None and readers(steps, left) == [call] and left not in call.arrays[1:]:
            gradient = before.actions[0].value
            steps[steps.index(call)] = Product("matmul", call.arrays[1:], call.scalars, call.makes, call.data, gradient)
            steps.remove(before)
        elif after is not None and readers(steps, product) == [after] and not call.data[0]:
            steps[steps.index(call)] = Product("matmul", call.arrays, call.scalars, (), call.data, delivers=True)
            steps.remove(after)
    return replace(program, block=Block(steps, program.block.changed))


def _stores_gradient(step: Pass, memory: Memory) -> bool:
    stores = [action for action in step.actions if isinstance(action, Store) and action.memory is memory]
    return stores == step.actions and memory.place == "scratch" and stores[0].value.op == "gradient"


def _delivers(step: Pass, memory: Memory) -> bool:
    delivered = [action.value for action in step.actions if isinstance(action, Deliver) and action.index is None]
    whole = step.domain is UNIT and step.chunk is None and len(delivered) == len(step.actions) == 1
    return whole and delivered[0].op == "load" and delivered[0].data is memory

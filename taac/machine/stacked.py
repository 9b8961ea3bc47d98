"""Computes one function for several modules of one structure at once, by batched operations.

The function is traced for one module, below autograd, as `CompiledFunction` does. The tensors of the module that it reads, and
its random draws, become inputs of the traced graph. `torch.func.vmap` then adds a dimension to all inputs: one number for each
module. Matrix products become batched products.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch

from taac import nest
from taac.data_structures import Nest
from taac.errors import TaacError
from taac.machine.attributes import Attributes, tensors_held
from taac.machine.batched_graph import CannotStack, Draw, add_dimension, count_multiplications, lift
from taac.machine.compiled import compile_graph, decompositions, first_line, trace
from taac.machine.cuda_graphs import captured

Key = tuple[tuple[torch.Size, torch.dtype], ...]


class Handed(NamedTuple):
    """One module's share of a joint computation."""

    key: Key
    leaves: list[torch.Tensor]  # of the arguments
    draws: list[torch.Tensor]  # the random numbers that the function uses, in order


class StackedTensors:
    """Parameters and buffers of N modules of one structure as slices of tensors `[N, ...]`.

    They stay what they are to anyone who changes them in place.

    Args:
        modules: of one structure.

    Raises:
        CannotStack: they are not.
    """

    def __init__(self, modules: Sequence[torch.nn.Module]):
        self.modules = modules
        self._stacked: dict[str, torch.Tensor] = {}
        held = [{**dict(m.named_parameters()), **dict(m.named_buffers())} for m in modules]
        for name in held[0]:
            self._stack(name, [tensors.get(name) for tensors in held])

    def names(self, number: int) -> dict[int, str]:
        """Returns the name of each tensor that a module or an object in it holds, by the tensor's id."""
        return {id(tensor): name for name, tensor in tensors_held(self.modules[number]).items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        """Returns the stacked tensor of a name."""
        if name not in self._stacked:  # held by an object that is no module
            self._stack(name, [tensors_held(module).get(name) for module in self.modules])
        return self._stacked[name]

    def _stack(self, name: str, given: Sequence[torch.Tensor | None]) -> None:
        tensors = [tensor for tensor in given if tensor is not None]
        if len(tensors) < len(given) or len({(t.shape, t.dtype, t.device) for t in tensors}) > 1:
            raise CannotStack(f"'{name}' is not of one shape in all")
        stacked = self._stacked[name] = torch.stack([tensor.detach() for tensor in tensors])
        for tensor, part in zip(tensors, stacked.unbind()):
            tensor.data = part


class StackedFunction:
    """A function of N modules of one structure, computed for all of them by one program.

    Args:
        functions: one for each module; each maps nests of tensors to a nest of tensors (or None) without gradients, and reads
            tensors of its own module. Apart from these, they do the same.
        held: the tensors of these modules.
        parts: as in `CompiledFunction`.
        compiler: "inductor" compiles the program; "none" runs its operations one by one.
        most_products: refuses functions whose matrix products take more multiplications than this for one module.

    Attributes:
        multiplications: that the matrix products of one module take; 0 before the first `hand_in`.
    """

    def __init__(
        self,
        functions: Sequence[Callable[..., Nest]],
        held: StackedTensors,
        parts: int | None = None,
        compiler: Literal["inductor", "none"] = "none",
        most_products: float = float("inf"),
    ):
        self._functions, self._held, self._parts, self._compiler = functions, held, parts, compiler
        self._most = most_products
        self._attributes = [Attributes(module) for module in held.modules]
        self._programs: dict[Key, _Program] = {}
        self._refused: TaacError | None = None  # what no module can do
        self.multiplications = 0

    def hand_in(self, number: int, *args: Nest) -> Handed:
        """Returns a module's share of the next joint computation. Draws its random numbers, from torch's global generator.

        Args:
            number: of the module.
            args: the function's arguments.

        Raises:
            CannotStack: the function cannot be computed for all modules at once.
        """
        if self._refused is not None:
            raise self._refused
        if (changed := self._attributes[number].changed()) is not None:
            raise CannotStack(f"{changed} has changed")
        if differs := self._attributes[0].differs(self._attributes[number]):
            raise CannotStack(f"{differs} is not the same in all")
        leaves = nest.flatten(args)
        key = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        program = self._programs.get(key)
        if program is None:
            try:
                program = self._programs[key] = self._build(number, args, leaves)
            except TaacError as error:
                self._refused = error
                raise
        return Handed(key, leaves, [draw() for draw in program.draws])

    def __call__(self, handed: Mapping[int, Handed]) -> dict[int, Nest]:
        """Computes the function for those modules that have handed in their share, all with one key.

        Returns:
            The results by number of the module. They are slices of stacked results.
        """
        some = next(iter(handed.values()))
        program = self._programs[some.key]
        # What is computed for those that handed in nothing is not looked at.
        shares = [handed.get(number, some) for number in range(len(self._functions))]
        columns = zip(*([*share.leaves, *share.draws] for share in shares))
        try:
            inputs = [*(self._held[name] for name in program.names), *map(torch.stack, columns)]
            if program.run is None:
                with torch.random.fork_rng(devices=[]):
                    compile = functools.partial(self._compile, program.graph)
                    program.run = captured(compile, program.graph, inputs, len(program.names))
            with torch.no_grad():
                results = [stacked.unbind() for stacked in program.run(*inputs)]
        except Exception as error:
            raise CannotStack(f"the stacked program failed: {first_line(error)}") from error
        return {number: program.pack([stacked[number] for stacked in results]) for number in handed}

    def _build(self, number: int, args: tuple[Nest, ...], leaves: list[torch.Tensor]) -> _Program:
        if len(self._programs) >= MOST_PROGRAMS:
            raise CannotStack(f"its arguments have had {MOST_PROGRAMS} combinations of shapes")
        graph, structure = trace(self._functions[number], args, self._held.modules[number], decompositions(None))
        self.multiplications = count_multiplications(graph)
        if self.multiplications > self._most:
            raise CannotStack(
                f"products of {self.multiplications / 1e6:.0f} million multiplications are not faster when they are batched "
                f"(the limit here is {self._most / 1e6:.0f} million)"
            )
        names, draws = lift(graph, self._held.names(number))
        results: Any = graph.graph.output_node().args[0]
        present = [result is not None for result in results]
        inputs = [self._held[name] for name in names]
        inputs += [torch.stack([x] * len(self._functions)) for x in (*leaves, *(draw.like() for draw in draws))]
        stacked = add_dimension(graph, inputs, decompositions(self._parts))
        return _Program(names, draws, stacked, structure, present)

    def _compile(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
        return graph if self._compiler == "none" else compile_graph(graph, inputs, self._parts)


MOST_PROGRAMS = 8


class _Program:
    """A stacked program: its inputs are the stacked tensors of `names`, then the arguments, then the draws."""

    def __init__(
        self,
        names: list[str],
        draws: list[Draw],
        graph: torch.fx.GraphModule,
        structure: Nest,
        present: list[bool],
    ):
        self.names, self.draws, self.graph = names, draws, graph
        self.run: Callable[..., list[torch.Tensor]] | None = None  # made at the first call
        self._structure, self._present = structure, present

    def pack(self, results: list[torch.Tensor]) -> Nest:
        """Packs results into the structure that the function returns, with None where it returned None."""
        found = iter(results)
        return nest.pack_like(self._structure, [next(found) if there else None for there in self._present])

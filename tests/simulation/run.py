"""One run of a simulated cluster: a seed in, a checksum and the broken invariants out.

The time and the randomness of the process must be virtual before this is imported, so
`scripts/simulate` and the tests start `python -m tests.simulation`.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import pickle
import resource
import shutil
import sys
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from comity.app.records import open_store
from comity.approvals.model import ApprovalRequest
from comity.audit.chain import AuditFilter, AuditRecord
from comity.audit.events import AuditType, event_of
from comity.cluster.in_process import LeaseBook
from comity.storage import stores
from tests.simulation import clock, mutants, store
from tests.simulation.bus import SimulatedNetwork
from tests.simulation.clients import Crowd
from tests.simulation.faults import (
    Fault,
    FaultInjector,
    calm_disk,
    calm_network,
    plan_faults,
    shorten,
)
from tests.simulation.invariants import Evidence, Send, Violation, call_name, find_violations
from tests.simulation.loop import SimulationLoop
from tests.simulation.nodes import ALONE, EVERYWHERE, LEASE, Cluster, Machinery, SimulatedNode
from tests.simulation.store import SimulatedDisk
from tests.simulation.upstream import Effect, SimulatedUpstream

FAULT_SECONDS: Final = 6.0
QUIET_SECONDS: Final = 10.0
_AGENTS: Final = 3


@dataclass
class Result:
    """What came of one run."""

    seed: int
    checksum: str = ""
    violations: list[str] = field(default_factory=list[str])
    faults: list[str] = field(default_factory=list[str])
    steps: int = 0
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    calls: int = 0
    answered: int = 0
    effects: int = 0
    approvals: int = 0
    revocations: int = 0
    refusals: dict[str, int] = field(default_factory=dict[str, int])
    journal: list[str] = field(default_factory=list[str])

    @property
    def line(self) -> str:
        cpu = 1000 * self.cpu_seconds / max(1, self.calls)
        figures = (
            f"seed {self.seed}: trace {self.checksum}, {self.steps} steps, "
            f"{self.virtual_seconds:.1f} virtual s, {self.cpu_seconds:.2f} CPU s "
            f"({cpu:.1f} ms a call), {self.calls} calls, {self.answered} answered, "
            f"{self.effects} effects, {self.approvals} approvals used, "
            f"{self.revocations} revocations"
        )
        return "\n  VIOLATED ".join([figures, *self.violations])


class World:
    """A cluster, the clients around it, and what both leave behind."""

    def __init__(self, seed: int, folder: Path) -> None:
        clock.restart(seed)
        self.seed = seed
        self.loop = SimulationLoop(seed, clock.CLOCK)
        self.sends: list[Send] = []
        self.committed: dict[tuple[str, int], bytes] = {}
        self._intended: set[str] = set()
        self._newest_token = 0
        random = Random(f"world {seed}")  # noqa: S311  # a seed, not a secret
        disk = SimulatedDisk(self.loop, folder / "store.db", random, self._on_committed)
        upstream = SimulatedUpstream(self.loop, random, self._on_sent)
        network = SimulatedNetwork(self.loop, random)
        leases = LeaseBook(LEASE)
        machinery = Machinery(self.loop, folder, disk, network, upstream, leases, random)
        self.cluster = Cluster(machinery)
        names = [f"n{number + 1}" for number in range(3 if seed % 3 == 2 else 2)]
        self.cluster.nodes = {name: SimulatedNode(machinery, name) for name in names}
        self.crowd = Crowd(self.cluster, seed)

    def _on_committed(self, records: Sequence[AuditRecord]) -> None:
        for record in records:
            self.committed[record.node, record.seq] = record.hash
            if record.type == AuditType.CALL_INTENDED:
                self._intended.add(call_name(event_of(record.body)))
        self.loop.note(f"{records[-1].node} committed {records[-1].seq}")

    def _on_sent(self, effect: Effect) -> None:
        self._newest_token = max(self._newest_token, effect.lease_token)
        was_intended = f"{effect.tool} {effect.argument}" in self._intended
        self.sends.append(Send(effect, was_intended, self._newest_token))

    async def play(self, faults: list[Fault]) -> Evidence:
        for node in self.cluster.nodes.values():
            await node.start()
        await self.crowd.set_up(_AGENTS)
        clients = self.crowd.tasks()
        await FaultInjector(self.cluster).run(faults)
        calm_network(self.cluster.machinery.network)
        calm_disk(self.cluster.machinery.disk)
        self.crowd.is_over = True
        calm_until = self.loop.time() + QUIET_SECONDS
        await asyncio.wait(clients, timeout=QUIET_SECONDS)
        await asyncio.sleep(max(0.0, calm_until - self.loop.time()))
        unrest = [f"client {each.get_name()} waits" for each in clients if not each.done()]
        for client in clients:
            if client.done():
                client.result()
        for node in self.cluster.nodes.values():
            unrest += await self._unrest_of(node)
        for node in self.cluster.nodes.values():
            await node.stop()
        return await self._evidence(unrest)

    async def _unrest_of(self, node: SimulatedNode) -> list[str]:
        """Say what is not quiet on a node, and which calls it does not serve."""
        held = {
            "active calls": len(node.parts.active_calls),
            "parked calls": len(node.parts.parked_calls),
            "uncommitted entries": node.parts.audit_log_components.audit_log.uncommitted_count,
        }
        unrest = [f"{node.name} holds {count} {what}" for what, count in held.items() if count]
        for server in (EVERYWHERE, ALONE):
            reply = await self.crowd.probe(node, server)
            if not reply.is_answered:
                unrest.append(f"{node.name} does not serve {server}: {reply.refusal or 'nothing'}")
        return unrest

    async def _evidence(self, unrest: list[str]) -> Evidence:
        records = open_store(f"sqlite:///{self.cluster.machinery.disk.path}")
        await records.open()
        entries, criteria = list[AuditRecord](), AuditFilter()
        while page := await records.audit_log.find(criteria, 2000):
            entries += page
            last = page[-1]
            criteria = AuditFilter(after=(last.at, last.node, last.seq))
        approvals, after = dict[str, ApprovalRequest](), ""
        while asked := await records.approval_requests.page((), after):
            approvals |= {each.id: each for each in asked}
            after = asked[-1].id
        await records.close()
        entries.sort(key=lambda entry: (entry.node, entry.seq))
        effects = self.cluster.machinery.upstream.effects
        return Evidence(
            entries, approvals, self.committed, self.sends, effects, self.crowd.seen, unrest
        )


def simulate(seed: int, faults: list[Fault] | None, *, keeps_journal: bool = False) -> Result:
    """Play one seed in this process, which should end afterwards."""
    # What is garbage differs between interpreters, and freeing coroutines runs code of theirs.
    gc.disable()
    began = _cpu_seconds()
    folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=_template().parent))
    world = World(seed, folder)
    shutil.copy(_template(), world.cluster.machinery.disk.path)
    store.install(world.cluster.machinery.disk)
    world.cluster.install()
    if keeps_journal:
        world.loop.journal = []
    planned = plan_faults(seed, FAULT_SECONDS, len(world.cluster.nodes))
    planned = planned if faults is None else faults
    result = Result(seed, faults=[str(fault) for fault in planned])
    try:
        evidence = world.loop.run(world.play(planned))
        result.violations = [str(each) for each in find_violations(evidence)]
        result.effects, seen = len(evidence.effects), evidence.seen
        result.answered, result.revocations = len(seen.answered), len(seen.revocations)
        result.approvals = sum(bool(each.call) for each in evidence.approvals.values())
    except Exception as error:
        logging.getLogger(__name__).debug("The run failed", exc_info=True)
        result.violations = [str(Violation("the run ended", (repr(error)[:300],)))]
    result.checksum, result.steps = f"{world.loop.checksum:08x}", world.loop.steps
    result.virtual_seconds = world.loop.time()
    result.calls, result.refusals = world.crowd.seen.started, dict(world.crowd.seen.refusals)
    result.journal = world.loop.journal or []
    result.cpu_seconds = _cpu_seconds() - began
    return result


def simulate_apart(
    seed: int, faults: list[Fault] | None = None, mutant: str = "", *, keeps_journal: bool = False
) -> Result:
    """Play one seed in a fork, so that no run depends on the ones before it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        if mutant:
            mutants.apply(mutant)
        result = simulate(seed, faults, keeps_journal=keeps_journal)
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    if not data:
        return Result(seed, violations=["the run died"])
    return pickle.loads(data)  # noqa: S301  # a process of our own wrote it


def shrink(seed: int, mutant: str = "") -> list[Fault]:
    """Return a short list of faults with which the seed still breaks something."""
    faults = plan_faults(seed, FAULT_SECONDS, 3 if seed % 3 == 2 else 2)
    return shorten(faults, lambda fewer: bool(simulate_apart(seed, fewer, mutant).violations))


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextlib.contextmanager
def prepared() -> Generator[None]:
    """Make what all runs of this process share: a migrated store, an environment, no log."""
    shared = Path("/dev/shm")  # a folder of our own is made in it
    folder = tempfile.mkdtemp(prefix="simulations-", dir=shared if shared.is_dir() else None)
    os.environ |= {"COMITY_STATE_DIR": folder, "COMITY_PEPPER": "pepper-" * 8}
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = folder
    if not os.environ.get("SIMULATION_LOG"):
        logging.disable(logging.CRITICAL)
    _migrate()
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _migrate() -> None:
    """Make an empty store with the newest schema, of which each run has a copy."""
    loop = SimulationLoop(0, clock.CLOCK)
    disk = SimulatedDisk(loop, _template(), Random(0), lambda _: None)  # noqa: S311  # no secret
    store.install(disk)
    loop.run(stores.upgrade_store(f"sqlite:///{_template()}"))
    disk.close()


def _template() -> Path:
    return Path(os.environ["COMITY_STATE_DIR"], "migrated.db")


def _report(result: Result, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(asdict(result)), flush=True)
        return
    print(result.line, flush=True)
    if options.steps:
        print("\n".join(result.journal))
    if result.violations and options.shrink:
        print("  shortest schedule of faults:")
        for fault in shrink(result.seed, options.mutant):
            print(f"    {fault}", flush=True)


def _serve(options: argparse.Namespace) -> None:
    """Play the seeds that come on the standard input, one by one, for the tests."""
    for line in sys.stdin:
        seed, _, mutant = line.strip().partition(" ")
        print(json.dumps(asdict(simulate_apart(int(seed), None, mutant))), flush=True)
    del options


def _seeds(options: argparse.Namespace) -> Sequence[int]:
    if options.seed is not None:
        return [options.seed]
    first, _, last = options.seeds.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="the seed of one run")
    parser.add_argument("--seeds", default="0-9", help="the first and the last seed, as 0-99")
    parser.add_argument("--steps", action="store_true", help="print everything that happened")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each run")
    parser.add_argument("--mutant", default="", help="play with this deliberate bug")
    parser.add_argument("--mutants", action="store_true", help="find every deliberate bug")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with prepared():
        if options.serve:
            _serve(options)
            return 0
        if options.mutants:
            return _find_mutants(options)
        return _play(options)


def _play(options: argparse.Namespace) -> int:
    count = failed = calls = 0
    cpu_seconds = 0.0
    for seed in _seeds(options):
        result = simulate_apart(seed, None, options.mutant, keeps_journal=options.steps)
        _report(result, options)
        count, failed = count + 1, failed + bool(result.violations)
        cpu_seconds, calls = cpu_seconds + result.cpu_seconds, calls + result.calls
    print(
        f"{count} seeds, {failed} with violations, {calls} calls, {cpu_seconds:.1f} CPU s "
        f"({cpu_seconds / max(1, count):.2f} a seed, {1000 * cpu_seconds / max(1, calls):.1f} ms "
        "a call)",
        file=sys.stderr,
    )
    return 1 if failed else 0


def _find_mutants(options: argparse.Namespace) -> int:
    """Print for each deliberate bug the first seed that finds it."""
    missed = 0
    for name in mutants.MUTANTS:
        for seed in _seeds(options):
            result = simulate_apart(seed, None, name)
            if result.violations:
                print(f"{name}: seed {seed}, {result.violations[0]}", flush=True)
                break
        else:
            missed += 1
            print(f"{name}: NOT FOUND", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

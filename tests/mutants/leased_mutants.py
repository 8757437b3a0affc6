"""Broken leases: who sent a batch, names and their fences, the end of monotonic sessions."""

from typing import Final

from tests.mutants.mutant import (
    APPENDS,
    GOLDEN,
    IDENTIFIED,
    NAMES,
    NAMING,
    SNAPSHOTS,
    STATE,
    VERIFIED,
    WIRE_GOLDEN,
    Mutant,
)

_NAMING: Final = "pidlease/engine/naming.py"
_PARTITION: Final = "pidlease/engine/partition.py"
_KNOWN: Final = "pidlease/engine/known.py"
_DOOR: Final = "proxy/kafka/identified.py"
_FIRST: Final = "pidlease/storage/first_record.py"

LEASED: Final = (
    Mutant(
        "a name's generation is not raised",
        _NAMING,
        "last._replace(generation=last.generation + 1)",
        "last",
        (NAMES,),
    ),
    Mutant(
        "a grant does not fence",
        _NAMING,
        "        fences[binding.pid] = max(binding.generation, fences.get(binding.pid, -1))\n",
        "        fences.setdefault(binding.pid, binding.generation)\n",
        (NAMES,),
    ),
    Mutant(
        "a grant does not wait for what is in flight",
        _NAMING,
        "            await self._landed(binding)\n",
        "",
        (NAMES,),
    ),
    Mutant(
        "fences are forgotten at a start",
        "pidlease/engine/engine.py",
        "        await self.naming.load()\n",
        "",
        (NAMES,),
    ),
    Mutant(
        "the PID before is not fenced",
        _NAMING,
        "            fences[binding.former] = FENCED_FOR_EVER\n",
        "            pass\n",
        (NAMES,),
    ),
    Mutant(
        "the PID before is not remembered",
        _NAMING,
        "former = next((p for p in (bound.pid, bound.former) if p in self._leases), -1)",
        "former = -1",
        (NAMES,),
    ),
    Mutant(
        "a name that is let go of is not fenced",
        _NAMING,
        "                    self._note(name, released)\n",
        "",
        (NAMES,),
    ),
    Mutant(
        "names: a conflict is taken for a success",
        _NAMING,
        "        except BindingConflictError:\n            return False\n",
        "        except BindingConflictError:\n            return True\n",
        (NAMES,),
    ),
    Mutant(
        "a fence is not asked for",
        _PARTITION,
        "self._fences.get(pid, -1) if self._fences else -1",
        "-1",
        (NAMES, WIRE_GOLDEN),
    ),
    Mutant(
        "the first record's PID is believed whatever the header says",
        _DOOR,
        "elif isinstance(found, Identity) and found.pid == pid and not found.records:",
        "elif isinstance(found, Identity) and not found.records:",
        (IDENTIFIED,),
    ),
    Mutant(
        "what comes behind a long batch passes it by",
        _DOOR,
        "            session.waiting.append(sent)\n            return\n",
        "            pass\n",
        (IDENTIFIED,),
    ),
    Mutant(
        "an error does not end a monotonic session",
        _DOOR,
        "        session.ended.add(who)\n",
        "        pass\n",
        (IDENTIFIED, WIRE_GOLDEN),
    ),
    Mutant(
        "a monotonic batch is held off behind a failed one",
        _PARTITION,
        "        if not rules.holes:\n            self._failed.note(pid, batch)\n",
        "        self._failed.note(pid, batch)\n",
        (APPENDS,),
    ),
    Mutant(
        "unpacking has no limit",
        _FIRST,
        "            if size >= unpacked_max:",
        "            if size >= unpacked_max * 100:",
        (IDENTIFIED,),
    ),
    Mutant(
        "a batch of the writer stays as it was sent",
        _DOOR,
        "            header = under_writer(header, data)\n",
        "",
        (IDENTIFIED,),
    ),
    Mutant(
        "the writer's batches are not replayed",
        _KNOWN,
        "            found = whose(logged, self.names)\n",
        "            found = whose(logged, self.names) if logged.identity is None else None\n",
        (VERIFIED,),
    ),
    Mutant(
        "producer ids are not kept in snapshots",
        "pidlease/storage/snapshot_tables.py",
        '_strings([self.ids.get(pid, "") for pid in self.pids])',
        '_strings([""] * len(pids))',
        (SNAPSHOTS,),
    ),
    Mutant(
        "a lease that a kill took is not known by its binding",
        _NAMING,
        "        self._leases.hold(binding.pid, binding.granted_ms)\n        return True\n",
        "        return binding.pid in self._leases\n",
        (NAMING,),
    ),
    Mutant(
        "the numbering of a PID that never wrote is the only one",
        _NAMING,
        "(bound.pid, bound.former) if p in",
        "(bound.pid,) if p in",
        (NAMING,),
    ),
    Mutant(
        "a failed grant takes another PID each time",
        _NAMING,
        "        self._spare[wanted.name] = pid\n",
        "",
        (NAMING,),
    ),
    Mutant(
        "who has no name begins anywhere",
        "pidlease/engine/leasing.py",
        "if policy_of(pid) is Policy.MONOTONIC and pid not in self.fences:",
        "if pid in self.fences and pid not in self.fences:",
        (NAMING,),
    ),
    Mutant(
        "who was forgotten goes on from what was kept",
        "pidlease/core/state.py",
        "if batch.first == 0 and rules.start_old is Start.AT_ZERO:",
        "if batch.first < 0 and rules.start_old is Start.AT_ZERO:",
        (STATE, NAMING),
    ),
    Mutant(
        "an invented PID is let through",
        _PARTITION,
        "            return UNKNOWN if never else ADMIT\n",
        "            return ADMIT\n",
        (NAMING,),
    ),
    Mutant(
        "a PID is known by its number alone",
        "pidlease/engine/lease_table.py",
        "return block.policies[place] != pid >> POLICY_SHIFT",
        "return False",
        (NAMING,),
    ),
    Mutant(
        "what the door refuses does not end a monotonic session",
        _DOOR,
        "            self._session(connection).ended.add((_ANYBODY, place))\n",
        "            pass\n",
        (IDENTIFIED,),
    ),
    Mutant(
        "a monotonic overlap waits",
        _PARTITION,
        "        if flying and rules.holes and kind is Kind.OVERLAP:\n",
        "        if not kind:\n",
        (IDENTIFIED,),
    ),
    Mutant(
        "what was not granted is let in",
        "pidlease/core/judge.py",
        "    if 0 <= granted < batch.generation:\n",
        "    if granted < 0 and False:\n",
        (GOLDEN,),
    ),
)

"""The loops of a kernel, and how many bytes its loads have under way before something waits for one of them."""
import bisect


class Flow:
    """Blocks are ranges of instructions; a call goes on behind itself, so that subroutines are no part of loops."""

    def __init__(self, kernel):
        self.code, self.labels = kernel.instructions, kernel.labels
        starts = {0} | {at for at in self.labels.values() if at < len(self.code)}
        for i, one in enumerate(self.code):
            if one.name in ("BRA", "BRX", "EXIT", "RET", "BSYNC") and i + 1 < len(self.code):
                starts.add(i + 1)
        self.starts = sorted(starts)
        ends = [*self.starts[1:], len(self.code)]
        self.blocks = list(zip(self.starts, ends))
        self.next = [self._next(end) for _, end in self.blocks]
        self.has_loads = [any(one.loads for one in self.code[begin:end]) for begin, end in self.blocks]
        self.loops = self._loops()

    def _block(self, instruction):
        return bisect.bisect_right(self.starts, instruction) - 1

    def _next(self, end):
        """The blocks after the one that ends there, the one that follows in memory first."""
        last = self.code[end - 1]
        behind = [self._block(end)] if end < len(self.code) else []
        targets = [self._block(at) for at in map(self.labels.get, last.targets) if at is not None and at < len(self.code)]
        if last.name in ("BRA", "BRX"):
            always = not last.predicate and last.operands.startswith("`(")
            return targets if always or last.name == "BRX" else [*behind, *targets]
        if last.name in ("EXIT", "RET"):
            return behind if last.predicate else []
        if last.name == "BSYNC":  # threads meet where the BSSY of this barrier says
            barrier = last.operands.split(",")[0]
            for one in reversed(self.code[:end]):
                if one.name == "BSSY" and one.operands.startswith(barrier + ","):
                    return [self._block(self.labels[name]) for name in one.targets if name in self.labels]
        return behind

    def _dominators(self):
        before = [[] for _ in self.blocks]
        seen, order, stack = {0}, [], [(0, iter(self.next[0]))]
        while stack:
            block, rest = stack[-1]
            following = next((b for b in rest if b not in seen), None)
            if following is None:
                order.append(block)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(self.next[following])))
        order.reverse()
        for block in order:
            for following in self.next[block]:
                before[following].append(block)
        everything = set(order)
        over = {block: everything for block in order}
        over[0] = {0}
        changed = True
        while changed:
            changed = False
            for block in order[1:]:
                new = set.intersection(*(over[b] for b in before[block])) | {block}
                if new != over[block]:
                    over[block], changed = new, True
        return over, before

    def _loops(self):
        """Sets of blocks with their head: {head: blocks}."""
        over, before = self._dominators()
        loops = {}
        for block in over:
            for head in self.next[block]:
                if head in over[block]:
                    body, stack = loops.setdefault(head, {head}), [block]
                    while stack:
                        one = stack.pop()
                        if one not in body:
                            body.add(one)
                            stack += before[one]
        # A branch to itself with nothing else in it is padding behind the code.
        return {head: body for head, body in loops.items()
                if len(body) > 1 or self.blocks[head][1] - self.blocks[head][0] > 1}

    def instructions(self, blocks):
        return [one for block in sorted(blocks) for one in self.code[slice(*self.blocks[block])]]

    def under_way(self, head, blocks):
        """(loads, bytes) that one thread has under way at most, over the ways through a loop from its head. Loads come
        back in order: an instruction that needs one waits for those before it too. Of loads of several widths those of
        one width count, whichever have most bytes."""
        best = (0, 0)
        for start in blocks:
            seen, stack = {head}, [(start, ())] if self.has_loads[start] else []
            while stack:
                block, flying = stack.pop()
                seen.add(block)
                for one in self.code[slice(*self.blocks[block])]:
                    if flying:
                        needed = one.reads
                        for k in range(len(flying) - 1, -1, -1):
                            if flying[k][0] & needed:
                                flying = flying[k + 1:]
                                break
                    if one.loads:
                        flying = (*flying, (one.writes, one.width))
                        best = max(best, *((width * count, count) for width, count in histogram(flying).items()))
                if flying:
                    stack += [(following, flying) for following in reversed(self.next[block])
                              if following in blocks and following not in seen]
        return best[1], best[0]


def histogram(flying):
    counts = {}
    for _, width in flying:
        counts[width] = counts.get(width, 0) + 1
    return counts

"""Tests of lockstep-run: a launcher of several that is killed. The others know it at once: no time-out plays a part here.
See launcher.py for how it is started."""
import contextlib
import json
import socket
import threading
import time

from coming_nodes import HOLD, SILENT, ComingNodes
from launcher import RANK, SOON, main, wait_until
from support.jobs import free_port

NEVER = str(100 * SOON)
GONE = f"node 1 is gone: its lockstep-run has ended ({socket.gethostname()})"
MEET = f"[ $LOCKSTEP_ROUND = 0 ] || {RANK} || exit; "  # ranks of later rounds talk to each other first


class Way:
    """A way to an address, on which connections can be cut. They are in the order in which they were made."""

    def __init__(self, address):
        self.target = address.split(":")
        self.listener = socket.create_server(("127.0.0.1", free_port()))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.connections = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:  # it was closed
                return
            far = self.reach()
            self.connections.append((near, far))
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self.pass_on, args=ends, daemon=True).start()

    def reach(self):
        end = time.monotonic() + SOON
        while True:
            try:
                return socket.create_connection(self.target)
            except ConnectionRefusedError:  # the launcher there does not listen yet
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)

    @staticmethod
    def pass_on(source, sink):
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self, number):
        for end in self.connections[number]:
            with contextlib.suppress(OSError):  # the other end's peer may have ended it by now, as it saw the first go
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.connections:
            for end in connection:
                end.close()


class Gone(ComingNodes):
    def nodes(self, *options, **how):
        return super().nodes(*options, **{"silent": NEVER, "grace": NEVER, **how})

    def test_a_node_goes_and_comes_back(self):
        file = self.folder / "end.json"
        first, second, third = self.nodes("--json", str(file), of=(0,)) + self.nodes(of=(1, 2))
        self.wait_for_round(0, 6)
        self.kill(second)
        self.wait_for_round(1, 4)
        smaller = "round 1 begins with 4 ranks on nodes 0, 2, after 1 of at most 3 restarts\n"
        self.until_it_says(third, smaller)
        second, = self.nodes(of=(1,))
        self.wait_for_round(2, 6)
        self.end()
        larger = "round 2 begins with 6 ranks on nodes 0, 1, 2, after 1 of at most 3 restarts\n"
        self.check(first, 0, GONE + ": ending the ranks\n", smaller, "node 1 (", ") has come: ending the ranks\n", larger,
                   out=["[0] 2: 0 of 6", "[1] 2: 1 of 6"])
        self.check(second, 0, "round 1 is under way with 4 ranks (nodes 0, 2): node 1 waits for the next round\n", larger,
                   out=["[2] 2: 2 of 6", "[3] 2: 3 of 6"])
        self.assertNotIn("another lockstep-run came", second.said)
        self.check(third, 0, smaller, larger, out=["[4] 2: 4 of 6", "[5] 2: 5 of 6"])
        found = json.loads(file.read_text())
        self.assertEqual([(each["round"], each["nodes"], each["restarts_used"], each["code"]) for each in found["rounds"]],
                         [(0, 3, 0, 1), (1, 2, 1, 0), (2, 3, 1, 0)])
        self.assertEqual([each["node"] for each in found["rounds"][1]["ranks"]], [0, 0, 2, 2])

    def test_two_nodes_go_at_once_and_come_back_twice(self):
        first, *others = self.nodes()
        self.wait_for_round(0, 6)
        self.kill(*others)
        self.wait_for_round(1, 2)
        second, = self.nodes(of=(1,))
        self.wait_for_round(2, 4)
        self.kill(second)
        self.wait_for_round(3, 2)
        second, = self.nodes(of=(1,))
        self.wait_for_round(4, 4)
        self.end()
        self.check(second, 0, out=["[2] 4: 2 of 4", "[3] 4: 3 of 4"])
        self.check(first, 0, "round 1 begins with 2 ranks on nodes 0, after 1 of at most 3 restarts\n",
                   "round 2 begins with 4 ranks on nodes 0, 1, after 1 of at most 3 restarts\n",
                   "round 3 begins with 2 ranks on nodes 0, after 2 of at most 3 restarts\n",
                   "round 4 begins with 4 ranks on nodes 0, 1, after 2 of at most 3 restarts\n")

    def test_while_a_round_is_formed(self):
        first, = self.nodes(of=(0,), least=4)
        self.kill(self.one_that_has_come(2, least=4))  # there were enough, and they waited for node 1
        second, = self.nodes(of=(1,), least=4)
        self.wait_for_round(0, 4)
        self.end()
        for job in (first, second):
            self.check(job, 0, "round 0 begins with 4 ranks on nodes 0, 1, after 0 of at most 3 restarts\n")

    def test_spares(self):
        options = ("--max-ranks", "4")
        first, second = self.nodes(*options, of=(0, 1), nnodes=2)
        self.wait_for_round(0, 4)
        spares = self.nodes(*options, of=(7, 8), nnodes=2)
        for spare in spares:
            self.until_it_says(spare, "(nodes 0, 1): node ")
        self.kill(spares[0])
        self.kill(second)
        self.wait_for_round(1, 4)
        for _ in range(2):  # the second takes the number of the first over
            spare, = self.nodes(*options, of=(7,), nnodes=2)
            self.until_it_says(spare, "(nodes 0, 8): node 7 waits")
            self.kill(spare)
        self.end()  # nobody waits for the spare
        self.check(first, 0, "round 1 begins with 4 ranks on nodes 0, 8, after 1 of at most 3 restarts\n")
        self.check(spares[1], 0)

    def test_one_that_is_taken_for_gone_comes_again(self):
        first, = self.nodes(of=(0,), least=6, silent=SILENT)
        way = Way(self.master)
        self.addCleanup(way.close)
        second, = self.nodes(of=(1,), least=6, master=way.address)
        self.until_it_says(first, "round 0 waits for nodes: it has 4 ranks (nodes 0, 1), at least 6 are asked for\n")
        way.cut(1)  # the second connection, which is there for its end
        third, = self.nodes(of=(2,), least=6)
        self.wait_for_round(0, 6)
        self.end()
        for job in (first, second, third):
            self.check(job, 0)

    def test_what_it_leaves_behind_is_of_no_consequence(self):
        # A process of its ranks that nobody knows as one, and that would take part as one of them.
        escaped = (f"setsid env -i G=$G LOCKSTEP_RANK=2 LOCKSTEP_WORLD_SIZE=6 LOCKSTEP_ROUND=0 LOCKSTEP_STORE=$LOCKSTEP_STORE "
                   "LOCKSTEP_TOKEN=$LOCKSTEP_TOKEN sh -c 'touch $G/escaped; until [ -e $G/go ]; do sleep 0.02; done; "
                   f"{RANK} 5000 >$G/said 2>&1; mv $G/said $G/refused' & ")
        program = ("case $LOCKSTEP_ROUND.$LOCKSTEP_RANK in 0.2) " + escaped + ";; 1.0) touch $G/go; "
                   "until [ -e $G/refused ]; do sleep 0.02; done;; esac; ")
        jobs = self.nodes(program=program + MEET + HOLD)
        self.wait_for_round(0, 6)
        wait_until((self.folder / "escaped").exists, "a process of rank 2 has escaped")
        self.kill(jobs[1])
        self.wait_for_round(1, 4)
        self.end()
        for job in (jobs[0], jobs[2]):
            self.check(job, 0)
        self.assertIn("has another token than this rank, which is of round 0 of its job: has a later one begun?",
                      (self.folder / "refused").read_text())


if __name__ == "__main__":
    main()

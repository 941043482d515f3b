"""Tests of lockstep-run: what ranks find in their environment. See launcher.py for how it is started."""
import os
import subprocess
import sys
import tempfile
import unittest

from launcher import RANK, RUN, SOON, environment, lines, main, run


class Environment(unittest.TestCase):
    def test_ranks_know_who_they_are(self):
        result = run("-n", "3", "sh", "-c", "echo $LOCKSTEP_RANK/$LOCKSTEP_WORLD_SIZE "
                     "$LOCKSTEP_LOCAL_RANK/$LOCKSTEP_LOCAL_SIZE ${LOCKSTEP_STORE%:*} ${#LOCKSTEP_TOKEN}")
        self.assertEqual(lines(result.stdout), [f"[{r}] {r}/3 {r}/3 127.0.0.1 64" for r in range(3)])

    def test_the_users_settings_stay(self):
        result = run("-n", "1", "sh", "-c", "echo $OMP_NUM_THREADS ${OMP_PROC_BIND-none} $LANG; cat", OMP_NUM_THREADS="3",
                     LANG="xyz")
        self.assertEqual(result.stdout, "[0] 3 none xyz\n")

    def test_several_ranks_get_a_thread_each(self):
        def threads(*options, **variables):
            variables = {k: v for k, v in environment(**variables).items() if v is not None}
            result = subprocess.run([RUN, *options, "sh", "-c", "echo ${OMP_NUM_THREADS-unset}"], capture_output=True,
                                    text=True, timeout=SOON, env=variables)
            return lines(result.stdout), result.stderr.count("OMP_NUM_THREADS is not set: each of the 2 ranks gets 1")

        self.assertEqual(threads("-n", "2", OMP_NUM_THREADS=None), (["[0] 1", "[1] 1"], 1))
        self.assertEqual(threads("-n", "2", OMP_NUM_THREADS="3"), (["[0] 3", "[1] 3"], 0))
        self.assertEqual(threads("-n", "1", OMP_NUM_THREADS=None), (["[0] unset"], 0))
        self.assertEqual(threads("-n", "2", "--bind", "cores", OMP_NUM_THREADS=None), (["[0] unset", "[1] unset"], 0))

    def test_the_token_file_becomes_the_token(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"a token for tests, 0123456789\n")
            file.flush()
            result = run("-n", "1", "--token-file", file.name, "sh", "-c", 'echo "$LOCKSTEP_TOKEN" $LOCKSTEP_TOKEN_FILE',
                         LOCKSTEP_TOKEN_FILE="/nowhere")
        self.assertEqual(result.stdout, "[0] a token for tests, 0123456789\n")

    def test_ranks_meet_in_the_store(self):
        for ranks in (1, 2, 5):
            result = run("-n", str(ranks), RANK)
            everybody = "".join(f" {r}/{ranks}:{r}/{ranks}" for r in range(ranks))
            self.assertEqual(lines(result.stdout), [f"[{r}] lockstep-run{everybody}" for r in range(ranks)], result.stderr)

    def test_cores_are_shared(self):
        program = "import os; print(*sorted(os.sched_getaffinity(0)))"
        cores = sorted(os.sched_getaffinity(0))
        result = run("-n", "2", "--bind", "cores", sys.executable, "-c", program)
        shares = [list(map(int, line.split()[1:])) for line in sorted(result.stdout.splitlines())]
        if len(cores) == 1:
            self.assertEqual(shares, [cores, cores])
        else:
            self.assertEqual(shares[0] + shares[1], cores)
            self.assertLessEqual(abs(len(shares[0]) - len(shares[1])), 1)
        result = run("-n", "1", sys.executable, "-c", program)
        self.assertEqual(result.stdout, f"[0] {' '.join(map(str, cores))}\n")

    def test_a_job_in_a_job(self):
        result = run("-n", "2", RUN, "-n", "2", "sh", "-c", "echo $LOCKSTEP_RANK of $LOCKSTEP_WORLD_SIZE")
        self.assertEqual(lines(result.stdout), [f"[{a}] [{b}] {b} of 2" for a in range(2) for b in range(2)])


if __name__ == "__main__":
    main()

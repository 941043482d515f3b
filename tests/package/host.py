"""host.py <plug-in> <plug-in>: the interpreter opens both with ctypes, calls them from threads, closes and opens again."""
import _ctypes
import ctypes
import sys
import threading


def open_plugin(path):
    plugin = ctypes.CDLL(path)
    plugin.plugin_step.restype = ctypes.c_double
    plugin.plugin_step.argtypes = [ctypes.c_double]
    assert plugin.plugin_catches() == 1
    return plugin


expected = None
for _ in range(3):
    plugins = [open_plugin(path) for path in sys.argv[1:]]
    results = [[plugin.plugin_step(0.1) for plugin in plugins]]
    threads = [threading.Thread(target=lambda: results.append([plugin.plugin_step(0.1) for plugin in plugins]))
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = expected or results[0][0]
    assert expected > 0 and results == [[expected, 2 * expected]] * 5, (expected, results)
    for plugin in plugins:
        _ctypes.dlclose(plugin._handle)
print("host.py: 3 rounds of 4 threads, two plug-ins")

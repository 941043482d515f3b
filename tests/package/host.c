// host <plug-in> <plug-in>: a C program that has threads opens both, calls them from several threads, closes them while
// their library's threads sleep, and does it again. Prints what is wrong.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { kThreads = 4, kRounds = 3 };

typedef double (*Step)(double lr);

static Step steps[2];
static double results[kThreads][2];

static void* open_plugin(const char* path, int index) {
  void* plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!plugin) {
    printf("host: %s\n", dlerror());
    exit(1);
  }
  steps[index] = (Step)dlsym(plugin, "plugin_step");
  int (*catches)(void) = (int (*)(void))dlsym(plugin, "plugin_catches");
  if (!steps[index] || !catches || catches() != 1) {
    printf("host: %s lacks a function, or does not catch what it throws\n", path);
    exit(1);
  }
  return plugin;
}

static void* call(void* result) {
  for (int index = 0; index < 2; ++index) ((double*)result)[index] = steps[index](0.1);
  return NULL;
}

static void* touch(void* plugin) {
  ((float (*)(void))dlsym(plugin, "plugin_touch"))();
  return NULL;
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t over = PTHREAD_COND_INITIALIZER;
static int ended = 0;

static void* older(void* unused) {  // a thread that was there before any plug-in
  pthread_mutex_lock(&mutex);
  while (!ended) pthread_cond_wait(&over, &mutex);
  pthread_mutex_unlock(&mutex);
  call(results[0]);
  return unused;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  pthread_t thread, threads[kThreads];
  pthread_create(&thread, NULL, older, NULL);
  void* plugins[2];
  double expected = 0;

  // Nothing of the caller holds it any more, but a device's threads may sleep in it.
  plugins[0] = open_plugin(argv[1], 0);
  pthread_create(&threads[0], NULL, touch, plugins[0]);
  pthread_join(threads[0], NULL);
  dlclose(plugins[0]);
  if (!dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD)) {
    printf("host: the plug-in went with its threads in it\n");
    return 1;
  }
  for (int round = 0; round < kRounds; ++round) {
    for (int index = 0; index < 2; ++index) plugins[index] = open_plugin(argv[1 + index], index);
    for (int t = 0; t < kThreads; ++t) pthread_create(&threads[t], NULL, call, results[t]);
    for (int t = 0; t < kThreads; ++t) pthread_join(threads[t], NULL);
    if (round == 0) expected = results[0][0];
    for (int t = 0; t < kThreads; ++t) {
      if (results[t][0] > 0 && results[t][0] == expected && results[t][1] == 2 * expected) continue;
      printf("host: round %d, thread %d: expected %g and twice that, got %g and %g\n", round, t, expected,
             results[t][0], results[t][1]);
      return 1;
    }
    if (round + 1 < kRounds)
      for (int index = 0; index < 2; ++index) dlclose(plugins[index]);
  }
  pthread_mutex_lock(&mutex);
  ended = 1;
  pthread_cond_signal(&over);
  pthread_mutex_unlock(&mutex);
  pthread_join(thread, NULL);
  for (int index = 0; index < 2; ++index) dlclose(plugins[index]);
  if (results[0][0] != expected) {
    printf("host: the older thread: expected %g, got %g\n", expected, results[0][0]);
    return 1;
  }
  printf("host: %d rounds of %d threads, two plug-ins\n", kRounds, kThreads);
  return 0;
}

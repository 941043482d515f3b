// The main function of test programs without one of their own.
#include "support/run_tests.h"

int main(int argc, char** argv) { return support::run_tests(argc, argv); }

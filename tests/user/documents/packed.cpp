// the block

void run() { read({randint(0, 1000, {3}), randint(0, 1000, {5}), randint(0, 1000, {1})}, randint(0, 2, {3})); }

// What a program outside the project does with ranks: models in parts, and in fewer bits. Each returns whether it came
// out.
#pragma once

// Two ranks with a part of the parameters each train as one does, and what they save goes on in a plain module.
bool sharded_training();
// A layer that two ranks divide gives what the whole one does.
bool divided_model();
// A network in eight bits stays near itself, and takes a quarter of the bytes.
bool fewer_bits();

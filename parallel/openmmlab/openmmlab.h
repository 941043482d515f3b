// What OpenMMLab's libraries have on top of data parallelism: data containers and samples, preprocessors, models that
// make their own steps, wrappers around models and optimizers.
#pragma once

#include "lockstep/parallel/lockstep.h"
#include "lockstep/parallel/openmmlab/base_model.h"
#include "lockstep/parallel/openmmlab/data_container.h"
#include "lockstep/parallel/openmmlab/data_preprocessor.h"
#include "lockstep/parallel/openmmlab/data_sample.h"
#include "lockstep/parallel/openmmlab/mm_data_parallel.h"
#include "lockstep/parallel/openmmlab/model_output.h"
#include "lockstep/parallel/openmmlab/model_wrapper.h"
#include "lockstep/parallel/openmmlab/named_values.h"
#include "lockstep/parallel/openmmlab/optim_wrapper.h"

// What OpenMMLab's libraries have on top of data parallelism: data containers and samples, preprocessors, models that
// make their own steps, wrappers around models and optimizers.
#pragma once

#include "lockstep/parallel/lockstep.h"
#include "lockstep/parallel/openmmlab/amp_optim_wrapper.h"
#include "lockstep/parallel/openmmlab/anomalous_params.h"
#include "lockstep/parallel/openmmlab/base_model.h"
#include "lockstep/parallel/openmmlab/data_container.h"
#include "lockstep/parallel/openmmlab/data_preprocessor.h"
#include "lockstep/parallel/openmmlab/data_sample.h"
#include "lockstep/parallel/openmmlab/mm_data_parallel.h"
#include "lockstep/parallel/openmmlab/mm_distributed_data_parallel.h"
#include "lockstep/parallel/openmmlab/mm_separate_distributed_data_parallel.h"
#include "lockstep/parallel/openmmlab/model_output.h"
#include "lockstep/parallel/openmmlab/model_wrapper.h"
#include "lockstep/parallel/openmmlab/named_values.h"
#include "lockstep/parallel/openmmlab/optim_wrapper.h"
#include "lockstep/parallel/openmmlab/optim_wrapper_dict.h"
#include "lockstep/parallel/openmmlab/parse_losses.h"
#include "lockstep/parallel/openmmlab/run_forward.h"

# The headers that users are told to include. What these include is installed with them, and nothing else is.
set(headers_for_users
  # Everything a program needs, and what is in it.
  parallel/umbrella/lockstep.h
  c/lockstep.h
  c/network.h
  parallel/build_info.h
  parallel/data_parallel.h
  parallel/gather.h
  parallel/parallel_apply.h
  parallel/replicate.h
  parallel/scatter.h
  parallel/scatter_gather.h
  parallel/checkpoint/checkpoint.h
  parallel/checkpoint/checkpoint_writer.h
  parallel/comm/communicator.h
  parallel/comm/parameter_hash.h
  parallel/comm/factory/make_communicator.h
  parallel/comm/factory/run_ranks.h
  parallel/comm/mesh/device_mesh.h
  parallel/ddp/buffer_hook.h
  parallel/ddp/comm_hook.h
  parallel/ddp/distributed_data_parallel.h
  parallel/ddp/hooks/basic_hooks.h
  parallel/ddp/hooks/model_averager.h
  parallel/ddp/hooks/one_module.h
  parallel/ddp/hooks/post_local_sgd.h
  parallel/ddp/hooks/power_sgd.h
  parallel/ddp/overflow.h
  parallel/ddp/work.h
  parallel/join/join.h
  parallel/serving/replica_pool.h
  parallel/sharding/fully_sharded_data_parallel.h
  parallel/sharding/zero_redundancy_optimizer.h
  parallel/sync_norm/convert_sync_batchnorm.h
  parallel/tensor_parallel/parallel_attention.h
  parallel/tensor_parallel/parallel_linear.h
  parallel/tensor_parallel/parts.h
  parallel/tensor_parallel/rank_ops.h
  parallel/tensor_parallel/same_draws.h
  parallel/tensor_parallel/vocabulary.h
  # Models (not in lockstep.h, but in models.h).
  models/umbrella/models.h
  models/generation/generate.h
  models/generation/generator.h
  models/checkpoint/checkpoint.h
  models/language/gpt2.h
  models/language/llama.h
  models/language/load_language_model.h
  models/language/quantize_language_model.h
  models/language/rotary.h
  models/vision/resnet.h
  kernels/dtype.h
  runtime/deadline.h
  runtime/device.h
  runtime/error.h
  runtime/host/host_options.h
  runtime/record/record.h
  runtime/log.h
  runtime/copy/copy.h
  runtime/memory/allocator.h
  runtime/stream/stream.h
  runtime/thread/shutdown.h
  tensor/context.h
  tensor/tensor.h
  tensor/tree.h
  tensor/value.h
  tensor/autograd/autocast.h
  tensor/autograd/checkpoint.h
  tensor/data/data_loader.h
  tensor/data/distributed_sampler.h
  tensor/io/dlpack.h
  tensor/io/npy.h
  tensor/io/safetensors.h
  tensor/nn/interrupt.h
  tensor/nn/layers.h
  tensor/nn/module.h
  tensor/ops/factory.h
  tensor/ops/ops.h
  tensor/ops/random.h
  tensor/optim/adam.h
  tensor/optim/checkpoint.h
  tensor/optim/clip.h
  tensor/optim/grad_scaler.h
  tensor/optim/lr_schedule.h
  tensor/optim/reduce_lr_on_plateau.h
  tensor/optim/rmsprop.h
  tensor/optim/sgd.h
  tensor/optim/sparse_adam.h
  models/text/stream_decoder.h
  models/text/tokenizer.h
  # For those who look inside, or bring something of their own: streams, backends, operations, communicators.
  kernels/api.h
  parallel/comm/loopback/loopback_communicator.h
  parallel/comm/mpi/mpi_communicator.h
  parallel/comm/nccl/nccl_communicator.h
  parallel/comm/peer/peer_communicator.h
  parallel/comm/ranks/connect_store.h
  parallel/comm/ranks/rank_info.h
  parallel/comm/shm/shared_memory_communicator.h
  parallel/comm/store/file_store.h
  parallel/comm/store/store.h
  parallel/comm/store/tcp_store.h
  parallel/comm/store/tcp_store_server.h
  runtime/backend.h
  runtime/copy/peer.h
  runtime/cuda/native_stream.h
  runtime/memory/memory_resource.h
  runtime/memory/memory_sharing.h
  runtime/order/order.h
  runtime/stream/declare.h
  runtime/stream/work_scope.h
  runtime/cuda/native_stream.h
  runtime/thread/device_thread.h
  runtime/trace/trace.h
  tensor/autograd/record.h
  tensor/optim/optimizer.h)
if(LOCKSTEP_OPENMMLAB)
  list(APPEND headers_for_users parallel/openmmlab/openmmlab.h)
endif()
if(LOCKSTEP_BENCHMARKS)
  list(APPEND headers_for_users parallel/bench/bench.h)
endif()

# lockstep_headers(<variable> <header>...): these and what they include, relative to the source tree.
function(lockstep_headers variable)
  set(found "")
  set(open ${ARGN})
  while(open)
    list(POP_FRONT open header)
    list(APPEND found "${header}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${header}")
    file(STRINGS "${PROJECT_SOURCE_DIR}/${header}" lines REGEX "^#include \"lockstep/")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include \"lockstep/([^\"]+)\".*" "\\1" included "${line}")
      if(NOT included IN_LIST found AND NOT included IN_LIST open AND NOT included STREQUAL "version.h")
        list(APPEND open "${included}")
      endif()
    endforeach()
  endwhile()
  list(SORT found)
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()

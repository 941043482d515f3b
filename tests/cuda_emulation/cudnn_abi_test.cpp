// The library declares what it uses of cuDNN itself; here that is compared with cuDNN's own header.
#if __has_include(<cudnn.h>)
#include "lockstep/kernels/cuda/cudnn_abi.h"

#include <cudnn.h>

namespace {

namespace dnn = lockstep::cudnn;

static_assert(sizeof(dnn::Descriptor) == sizeof(cudnnBackendDescriptor_t) &&
              sizeof(dnn::Handle) == sizeof(cudnnHandle_t) && sizeof(dnn::Status) == sizeof(cudnnStatus_t) &&
              sizeof(dnn::Note) == sizeof(cudnnBackendNumericalNote_t));
static_assert(int{dnn::kSuccess} == CUDNN_STATUS_SUCCESS && int{dnn::kNotInitialized} == CUDNN_STATUS_NOT_INITIALIZED &&
              int{dnn::kBadParam} == CUDNN_STATUS_BAD_PARAM && int{dnn::kNotSupported} == CUDNN_STATUS_NOT_SUPPORTED &&
              int{dnn::kInternalError} == CUDNN_STATUS_INTERNAL_ERROR &&
              int{dnn::kNoHostMemory} == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED &&
              int{dnn::kNoDeviceMemory} == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED &&
              int{dnn::kExecutionFailed} == CUDNN_STATUS_EXECUTION_FAILED);
static_assert(int{dnn::kConvolution} == CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR &&
              int{dnn::kEngine} == CUDNN_BACKEND_ENGINE_DESCRIPTOR &&
              int{dnn::kEngineConfig} == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR &&
              int{dnn::kHeuristic} == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR &&
              int{dnn::kPlan} == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
              int{dnn::kForward} == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR &&
              int{dnn::kBackwardFilter} == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR &&
              int{dnn::kBackwardData} == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR &&
              int{dnn::kGraph} == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR &&
              int{dnn::kVariantPack} == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR &&
              int{dnn::kTensor} == CUDNN_BACKEND_TENSOR_DESCRIPTOR);
static_assert(int{dnn::kConvolutionType} == CUDNN_ATTR_CONVOLUTION_COMP_TYPE &&
              int{dnn::kConvolutionMode} == CUDNN_ATTR_CONVOLUTION_CONV_MODE &&
              int{dnn::kConvolutionDilations} == CUDNN_ATTR_CONVOLUTION_DILATIONS &&
              int{dnn::kConvolutionStrides} == CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES &&
              int{dnn::kConvolutionPostPaddings} == CUDNN_ATTR_CONVOLUTION_POST_PADDINGS &&
              int{dnn::kConvolutionPrePaddings} == CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS &&
              int{dnn::kConvolutionDimensions} == CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
static_assert(int{dnn::kHeuristicMode} == CUDNN_ATTR_ENGINEHEUR_MODE &&
              int{dnn::kHeuristicGraph} == CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH &&
              int{dnn::kHeuristicResults} == CUDNN_ATTR_ENGINEHEUR_RESULTS &&
              int{dnn::kConfigEngine} == CUDNN_ATTR_ENGINECFG_ENGINE &&
              int{dnn::kPlanConfig} == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG &&
              int{dnn::kPlanWorkspace} == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
template <int kFirst>
constexpr bool operation(int alpha, int beta, int convolution, int weights, int input, int output) {
  return alpha == kFirst + dnn::kAlpha && beta == kFirst + dnn::kBeta && convolution == kFirst + dnn::kOfConvolution &&
         weights == kFirst + dnn::kOfWeights && input == kFirst + dnn::kOfInput && output == kFirst + dnn::kOfOutput;
}
static_assert(operation<dnn::kForwardAttributes>(
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y));
static_assert(operation<dnn::kBackwardDataAttributes>(
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY));
static_assert(operation<dnn::kBackwardFilterAttributes>(
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY));
static_assert(int{dnn::kGraphOperations} == CUDNN_ATTR_OPERATIONGRAPH_OPS &&
              int{dnn::kTensorAlignment} == CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT &&
              int{dnn::kTensorType} == CUDNN_ATTR_TENSOR_DATA_TYPE &&
              int{dnn::kTensorDimensions} == CUDNN_ATTR_TENSOR_DIMENSIONS &&
              int{dnn::kTensorStrides} == CUDNN_ATTR_TENSOR_STRIDES &&
              int{dnn::kTensorId} == CUDNN_ATTR_TENSOR_UNIQUE_ID &&
              int{dnn::kPackIds} == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS &&
              int{dnn::kPackPointers} == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS &&
              int{dnn::kPackWorkspace} == CUDNN_ATTR_VARIANT_PACK_WORKSPACE &&
              int{dnn::kEngineNumber} == CUDNN_ATTR_ENGINE_GLOBAL_INDEX &&
              int{dnn::kEngineNotes} == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
static_assert(int{dnn::kTypeHandle} == CUDNN_TYPE_HANDLE && int{dnn::kTypeDataType} == CUDNN_TYPE_DATA_TYPE &&
              int{dnn::kTypeInt64} == CUDNN_TYPE_INT64 && int{dnn::kTypeFloat} == CUDNN_TYPE_FLOAT &&
              int{dnn::kTypePointer} == CUDNN_TYPE_VOID_PTR &&
              int{dnn::kTypeConvolutionMode} == CUDNN_TYPE_CONVOLUTION_MODE &&
              int{dnn::kTypeHeuristicMode} == CUDNN_TYPE_HEUR_MODE &&
              int{dnn::kTypeNote} == CUDNN_TYPE_NUMERICAL_NOTE &&
              int{dnn::kTypeDescriptor} == CUDNN_TYPE_BACKEND_DESCRIPTOR && int{dnn::kTypeChar} == CUDNN_TYPE_CHAR);
static_assert(int{dnn::kFloat} == CUDNN_DATA_FLOAT && int{dnn::kHalf} == CUDNN_DATA_HALF &&
              int{dnn::kBfloat16} == CUDNN_DATA_BFLOAT16 && int{dnn::kCrossCorrelation} == CUDNN_CROSS_CORRELATION &&
              int{dnn::kFallback} == CUDNN_HEUR_MODE_FALLBACK && int{dnn::kFirst} == CUDNN_HEUR_MODE_A);
static_assert(int{dnn::kTensorCore} == CUDNN_NUMERICAL_NOTE_TENSOR_CORE &&
              int{dnn::kDownConverts} == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS &&
              int{dnn::kReducedReduction} == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION &&
              int{dnn::kFft} == CUDNN_NUMERICAL_NOTE_FFT &&
              int{dnn::kNondeterministic} == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC &&
              int{dnn::kWinograd} == CUDNN_NUMERICAL_NOTE_WINOGRAD &&
              int{dnn::kWinograd4} == CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4 &&
              int{dnn::kWinograd6} == CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 &&
              int{dnn::kWinograd13} == CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13 &&
              int{CUDNN_NUMERICAL_NOTE_TYPE_COUNT} <= dnn::kMostNotes);
static_assert(int{dnn::kPointwise} == CUDNN_BACKEND_POINTWISE_DESCRIPTOR &&
              int{dnn::kPointwiseOperation} == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR &&
              int{dnn::kMatmul} == CUDNN_BACKEND_MATMUL_DESCRIPTOR &&
              int{dnn::kMatmulOperation} == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR &&
              int{dnn::kReduction} == CUDNN_BACKEND_REDUCTION_DESCRIPTOR &&
              int{dnn::kReductionOperation} == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR &&
              int{dnn::kReshapeOperation} == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
static_assert(int{dnn::kPointwiseMode} == CUDNN_ATTR_POINTWISE_MODE &&
              int{dnn::kPointwiseType} == CUDNN_ATTR_POINTWISE_MATH_PREC &&
              int{dnn::kPointwiseAxis} == CUDNN_ATTR_POINTWISE_AXIS &&
              int{dnn::kOfPointwise} == CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR &&
              int{dnn::kPointwiseX} == CUDNN_ATTR_OPERATION_POINTWISE_XDESC &&
              int{dnn::kPointwiseB} == CUDNN_ATTR_OPERATION_POINTWISE_BDESC &&
              int{dnn::kPointwiseY} == CUDNN_ATTR_OPERATION_POINTWISE_YDESC &&
              int{dnn::kPointwiseT} == CUDNN_ATTR_OPERATION_POINTWISE_TDESC &&
              int{dnn::kTensorIsVirtual} == CUDNN_ATTR_TENSOR_IS_VIRTUAL &&
              int{dnn::kTensorIsByValue} == CUDNN_ATTR_TENSOR_IS_BY_VALUE);
static_assert(int{dnn::kMatmulType} == CUDNN_ATTR_MATMUL_COMP_TYPE &&
              int{dnn::kMatmulA} == CUDNN_ATTR_OPERATION_MATMUL_ADESC &&
              int{dnn::kMatmulB} == CUDNN_ATTR_OPERATION_MATMUL_BDESC &&
              int{dnn::kMatmulC} == CUDNN_ATTR_OPERATION_MATMUL_CDESC &&
              int{dnn::kOfMatmul} == CUDNN_ATTR_OPERATION_MATMUL_DESC &&
              int{dnn::kReductionOperator} == CUDNN_ATTR_REDUCTION_OPERATOR &&
              int{dnn::kReductionType} == CUDNN_ATTR_REDUCTION_COMP_TYPE &&
              int{dnn::kReductionX} == CUDNN_ATTR_OPERATION_REDUCTION_XDESC &&
              int{dnn::kReductionY} == CUDNN_ATTR_OPERATION_REDUCTION_YDESC &&
              int{dnn::kOfReduction} == CUDNN_ATTR_OPERATION_REDUCTION_DESC &&
              int{dnn::kReshapeX} == CUDNN_ATTR_OPERATION_RESHAPE_XDESC &&
              int{dnn::kReshapeY} == CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
static_assert(int{dnn::kTypeBoolean} == CUDNN_TYPE_BOOLEAN &&
              int{dnn::kTypePointwiseMode} == CUDNN_TYPE_POINTWISE_MODE &&
              int{dnn::kTypeReductionOperator} == CUDNN_TYPE_REDUCTION_OPERATOR_TYPE &&
              int{dnn::kInt32} == CUDNN_DATA_INT32 && int{dnn::kBoolean} == CUDNN_DATA_BOOLEAN);
static_assert(int{dnn::kAdd} == CUDNN_POINTWISE_ADD && int{dnn::kMul} == CUDNN_POINTWISE_MUL &&
              int{dnn::kDiv} == CUDNN_POINTWISE_DIV && int{dnn::kSub} == CUDNN_POINTWISE_SUB &&
              int{dnn::kExp} == CUDNN_POINTWISE_EXP && int{dnn::kLog} == CUDNN_POINTWISE_LOG &&
              int{dnn::kGreaterEqual} == CUDNN_POINTWISE_CMP_GE &&
              int{dnn::kGenerateIndex} == CUDNN_POINTWISE_GEN_INDEX &&
              int{dnn::kSelect} == CUDNN_POINTWISE_BINARY_SELECT && int{dnn::kReduceAdd} == CUDNN_REDUCE_TENSOR_ADD &&
              int{dnn::kReduceMax} == CUDNN_REDUCE_TENSOR_MAX);
#if CUDNN_VERSION >= 90400
static_assert(int{dnn::kKernelCache} == CUDNN_BACKEND_KERNEL_CACHE_DESCRIPTOR &&
              int{dnn::kCacheGraph} == CUDNN_ATTR_KERNEL_CACHE_OPERATION_GRAPH &&
              int{dnn::kPlanKernelCache} == CUDNN_ATTR_EXECUTION_PLAN_KERNEL_CACHE &&
              int{dnn::kGraphIsDynamic} == CUDNN_ATTR_OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED);
#endif
#if CUDNN_VERSION >= 90800
static_assert(int{dnn::kDeviceProperties} == CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR &&
              int{dnn::kHeuristicDevice} == CUDNN_ATTR_ENGINEHEUR_DEVICEPROP &&
              int{dnn::kPlanDevice} == CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP &&
              int{dnn::kDeviceJson} == CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
#endif

}  // namespace
#endif

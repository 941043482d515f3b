// What of cuDNN's interface is used here, so that building needs no cudnn.h. The numbers are part of the binary
// interface of cuDNN 8 and 9 (its graph API); where there is a cudnn.h, the tests compare. Private to the library.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::cudnn {

using Handle = struct cudnnContext*;
using Descriptor = void*;
using NativeStream = void*;  // a cudaStream_t

enum Status : int {
  kSuccess = 0,
  kNotInitialized = 1001,  // and the codes behind it, of libraries that are missing or of other versions
  kBadParam = 2000,
  kNotSupported = 3000,  // and the 999 behind it, which say what is not
  kInternalError = 4000,
  kNoHostMemory = 4003,
  kNoDeviceMemory = 4004,
  kExecutionFailed = 5000,
};

enum DescriptorKind : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristic = 4,
  kPlan = 5,
  kForward = 10,
  kBackwardFilter = 11,
  kBackwardData = 12,
  kPointwiseOperation = 13,
  kGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kMatmulOperation = 19,
  kReduction = 21,
  kReductionOperation = 22,
  kReshapeOperation = 31,
  kKernelCache = 34,       // 9.4
  kDeviceProperties = 38,  // 9.8
};

enum Attribute : int {
  kPointwiseMode = 0,
  kPointwiseType = 1,
  kPointwiseAxis = 9,
  kConvolutionType = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionPostPaddings = 104,
  kConvolutionPrePaddings = 105,
  kConvolutionDimensions = 106,
  kHeuristicMode = 200,
  kHeuristicGraph = 201,
  kHeuristicResults = 202,
  kHeuristicDevice = 204,
  kConfigEngine = 300,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kPlanKernelCache = 406,
  kPlanDevice = 407,
  // Of the operations: alpha, beta and the convolution stand first. Then w, x, y; w, dx, dy; dw, x, dy.
  kForwardAttributes = 700,
  kBackwardDataAttributes = 706,
  kBackwardFilterAttributes = 712,
  kOfPointwise = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kPointwiseT = 758,  // which of x and b, of a selection
  kGraphHandle = 800,
  kGraphOperations = 801,
  kGraphIsDynamic = 803,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineNumber = 1301,
  kEngineNotes = 1303,
  kMatmulType = 1500,
  kMatmulA = 1520,
  kMatmulB = 1521,
  kMatmulC = 1522,
  kOfMatmul = 1523,
  kReductionOperator = 1600,
  kReductionType = 1601,
  kReductionX = 1610,
  kReductionY = 1611,
  kOfReduction = 1612,
  kReshapeX = 2200,
  kReshapeY = 2201,
  kCacheGraph = 2400,
  kDeviceJson = 2702,
};
// Behind the first attribute of an operation.
enum OperationAttribute : int { kAlpha, kBeta, kOfConvolution, kOfWeights, kOfInput, kOfOutput };

enum AttributeType : int {
  kTypeHandle = 0,
  kTypeDataType = 1,
  kTypeBoolean = 2,
  kTypeInt64 = 3,
  kTypeFloat = 4,
  kTypePointer = 6,
  kTypeConvolutionMode = 7,
  kTypeHeuristicMode = 8,
  kTypeNote = 11,
  kTypePointwiseMode = 14,
  kTypeDescriptor = 15,
  kTypeReductionOperator = 18,
  kTypeChar = 24,
};

enum DataType : int { kFloat = 0, kHalf = 2, kInt32 = 4, kBfloat16 = 9, kBoolean = 11 };
enum PointwiseMode : int {
  kAdd = 0,
  kMul = 1,
  kDiv = 6,
  kSub = 9,
  kExp = 13,
  kLog = 15,
  kGreaterEqual = 303,
  kGenerateIndex = 501,
  kSelect = 601,
};
enum ReductionOperator : int { kReduceAdd = 0, kReduceMax = 3 };
enum ConvolutionMode : int { kCrossCorrelation = 1 };
enum HeuristicMode : int { kFallback = 2, kFirst = 3 };  // what it takes for fast first; what works at all

// What is numerically special about an engine.
enum Note : int {
  kTensorCore = 0,
  kDownConverts = 1,
  kReducedReduction = 2,
  kFft = 3,
  kNondeterministic = 4,
  kWinograd = 5,
  kWinograd4 = 6,
  kWinograd6 = 7,
  kWinograd13 = 8,
  kStrictNan = 9,
};
inline constexpr int kMostNotes = 16;

}  // namespace lockstep::cudnn

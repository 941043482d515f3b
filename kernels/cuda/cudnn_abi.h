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
  kExecutionFailed = 5000,
};

enum DescriptorKind : int {
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristic = 4,
  kPlan = 5,
  kForward = 10,
  kBackwardFilter = 11,
  kBackwardData = 12,
  kGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kDeviceProperties = 38,  // 9.8
};

enum Attribute : int {
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
  kPlanDevice = 407,
  // Of the operations: alpha, beta and the convolution stand first. Then w, x, y; w, dx, dy; dw, x, dy.
  kForwardAttributes = 700,
  kBackwardDataAttributes = 706,
  kBackwardFilterAttributes = 712,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineNumber = 1301,
  kEngineNotes = 1303,
  kDeviceJson = 2702,
};
// Behind the first attribute of an operation.
enum OperationAttribute : int { kAlpha, kBeta, kOfConvolution, kOfWeights, kOfInput, kOfOutput };

enum AttributeType : int {
  kTypeHandle = 0,
  kTypeDataType = 1,
  kTypeInt64 = 3,
  kTypeFloat = 4,
  kTypePointer = 6,
  kTypeConvolutionMode = 7,
  kTypeHeuristicMode = 8,
  kTypeNote = 11,
  kTypeDescriptor = 15,
  kTypeChar = 24,
};

enum DataType : int { kFloat = 0, kHalf = 2, kBfloat16 = 9 };
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

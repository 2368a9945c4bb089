#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

/// The part of TensorFlow's interface for C that kernels need, as its headers tensorflow/c/{kernels,ops,tf_tensor,
/// tf_status}.h describe it. Its functions are looked up in the framework that is loaded, so that nothing here is
/// compiled against a release.
namespace casync::tensorflow {

struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;

/// Numbers of TF_DataType.
enum DataType : int {
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kUint16 = 17,
  kHalf = 19
};

/// Numbers of TF_Code.
enum Code : int {
  kOk = 0,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kUnimplemented = 12,
  kFailedPrecondition = 9,
  kAborted = 10,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15
};

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);
using CreateFunction = void* (*)(TF_OpKernelConstruction*);
using ComputeFunction = void (*)(void* kernel, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
using DeleteFunction = void (*)(void* kernel);

/// Name, result and arguments of each.
#define CASYNC_TENSORFLOW_FUNCTIONS(X)                                                                              \
  X(TF_NewStatus, TF_Status*, ())                                                                                   \
  X(TF_DeleteStatus, void, (TF_Status*))                                                                            \
  X(TF_SetStatus, void, (TF_Status*, int code, const char* text))                                                   \
  X(TF_GetCode, int, (const TF_Status*))                                                                            \
  X(TF_Message, const char*, (const TF_Status*))                                                                    \
  X(TF_NumDims, int, (const TF_Tensor*))                                                                            \
  X(TF_Dim, std::int64_t, (const TF_Tensor*, int index))                                                            \
  X(TF_TensorData, void*, (const TF_Tensor*))                                                                       \
  X(TF_TensorByteSize, std::size_t, (const TF_Tensor*))                                                             \
  X(TF_DeleteTensor, void, (TF_Tensor*))                                                                            \
  X(TF_NewOpDefinitionBuilder, TF_OpDefinitionBuilder*, (const char* name))                                         \
  X(TF_OpDefinitionBuilderAddAttr, void, (TF_OpDefinitionBuilder*, const char*))                                    \
  X(TF_OpDefinitionBuilderAddInput, void, (TF_OpDefinitionBuilder*, const char*))                                   \
  X(TF_OpDefinitionBuilderAddOutput, void, (TF_OpDefinitionBuilder*, const char*))                                  \
  X(TF_OpDefinitionBuilderSetIsStateful, void, (TF_OpDefinitionBuilder*, bool))                                     \
  X(TF_OpDefinitionBuilderSetShapeInferenceFunction, void, (TF_OpDefinitionBuilder*, ShapeFunction))                \
  X(TF_RegisterOpDefinition, void, (TF_OpDefinitionBuilder*, TF_Status*))                                           \
  X(TF_ShapeInferenceContextSetUnknownShape, void, (TF_ShapeInferenceContext*, TF_Status*))                         \
  X(TF_NewAsyncKernelBuilder, TF_KernelBuilder*,                                                                    \
    (const char* name, const char* device, CreateFunction, ComputeFunction, DeleteFunction))                        \
  X(TF_RegisterKernelBuilder, void, (const char* name, TF_KernelBuilder*, TF_Status*))                              \
  X(TF_OpKernelConstruction_Failure, void, (TF_OpKernelConstruction*, TF_Status*))                                  \
  X(TF_OpKernelConstruction_GetAttrSize, void,                                                                      \
    (TF_OpKernelConstruction*, const char*, std::int32_t* entries, std::int32_t* bytes, TF_Status*))                \
  X(TF_OpKernelConstruction_GetAttrString, void,                                                                    \
    (TF_OpKernelConstruction*, const char*, char*, std::size_t, TF_Status*))                                        \
  X(TF_OpKernelConstruction_GetAttrInt64, void, (TF_OpKernelConstruction*, const char*, std::int64_t*, TF_Status*)) \
  X(TF_OpKernelConstruction_GetAttrFloat, void, (TF_OpKernelConstruction*, const char*, float*, TF_Status*))        \
  X(TF_OpKernelConstruction_GetAttrType, void, (TF_OpKernelConstruction*, const char*, int*, TF_Status*))           \
  X(TF_GetInput, void, (TF_OpKernelContext*, int index, TF_Tensor**, TF_Status*))                                   \
  X(TF_AllocateOutput, TF_Tensor*,                                                                                  \
    (TF_OpKernelContext*, int index, int type, const std::int64_t* dims, int count, std::size_t bytes, TF_Status*)) \
  X(TF_ForwardInputOrAllocateOutput, TF_Tensor*,                                                                    \
    (TF_OpKernelContext*, const int* candidates, int count, int output, const std::int64_t* dims, int dimensions,   \
     int* forwarded, TF_Status*))                                                                                   \
  X(TF_OpKernelContext_Failure, void, (TF_OpKernelContext*, TF_Status*))                                            \
  X(TF_RunAsyncOpKernelDoneCallback, void, (TF_AsyncOpKernelDoneCallback*))

/// The functions of the framework in this process.
struct Framework {
#define CASYNC_DECLARE(name, result, arguments) result(*name) arguments = nullptr;
  CASYNC_TENSORFLOW_FUNCTIONS(CASYNC_DECLARE)
#undef CASYNC_DECLARE

  /// What is missing for them to be complete; empty if nothing is.
  std::string missing;
};

/// Looked up by the first call, which is that of this library's start.
const Framework& framework();

/// A TF_Status, read and written while it lives.
class Status {
 public:
  Status() : status_(framework().TF_NewStatus()) {}
  ~Status() { framework().TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  operator TF_Status*() const { return status_; }
  bool ok() const { return framework().TF_GetCode(status_) == kOk; }
  std::string text() const { return framework().TF_Message(status_); }

 private:
  TF_Status* status_;
};

/// What an asynchronous kernel is given to say that it is done. The interface hands out the address of a
/// std::function<void()> on the stack of its caller, which is gone when the kernel returns; so it is moved out of
/// there.
class Done {
 public:
  explicit Done(TF_AsyncOpKernelDoneCallback* given)
      : function_(std::move(*reinterpret_cast<std::function<void()>*>(given))) {}
  void operator()() { function_(); }
  /// Whether what lies there looks like one: a release may keep it in another form.
  static bool is_known(TF_AsyncOpKernelDoneCallback* given);

 private:
  std::function<void()> function_;
};

}  // namespace casync::tensorflow

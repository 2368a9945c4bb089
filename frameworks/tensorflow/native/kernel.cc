#include "kernel.hpp"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "casync/error.hpp"

namespace casync::tensorflow {
namespace {

const casync_c_api* api = nullptr;

/// One operation of a graph.
struct Kernel {
  casync_tensor tensor{};  // with texts of the strings below, and without a shape
  std::string name, site, compression, topology;
  int type = 0;
  int process_set = 0;
};

struct Held {
  TF_Tensor* tensor = nullptr;

  Held() = default;
  explicit Held(TF_Tensor* given) : tensor(given) {}
  Held(Held&& other) noexcept : tensor(std::exchange(other.tensor, nullptr)) {}
  Held& operator=(Held&& other) noexcept {
    std::swap(tensor, other.tensor);
    return *this;
  }
  ~Held() {
    if (tensor != nullptr) framework().TF_DeleteTensor(tensor);
  }
  void* data() const { return tensor == nullptr ? nullptr : framework().TF_TensorData(tensor); }
};

/// One execution of it.
struct Run {
  const Kernel* kernel;
  TF_OpKernelContext* context;
  Done done;
  Held input, output;
  std::vector<std::int64_t> shape;

  void fail(int code, const std::string& text) const {
    const Status status;
    framework().TF_SetStatus(status, code, text.c_str());
    framework().TF_OpKernelContext_Failure(context, status);
  }
};

/// An error that ends this execution before it has begun.
struct Refusal {
  int code;
  std::string text;
};

int code_of(casync_error error) {
  switch (static_cast<ErrorKind>(error - 1)) {
    case ErrorKind::invalid_argument:
    case ErrorKind::unfit_plan:
    case ErrorKind::unloaded_codec:
      return kInvalidArgument;
    case ErrorKind::not_available:
      return kUnimplemented;
    case ErrorKind::mismatch:
    case ErrorKind::joined:
      return kFailedPrecondition;
    case ErrorKind::peer_gone:
    case ErrorKind::peer_silent:
      return kUnavailable;
    case ErrorKind::aborted:
    case ErrorKind::shut_down:
    case ErrorKind::fault:
    case ErrorKind::device:
      return kAborted;
    case ErrorKind::stalled:
      return kDeadlineExceeded;
    case ErrorKind::corrupt_payload:
      return kDataLoss;
    default:
      return kInternal;
  }
}

/// Whether transfers may still touch an operation's memory, until the session is shut down.
bool ends_the_session(casync_error error) {
  const int code = code_of(error);
  return code == kUnavailable || code == kAborted || code == kDataLoss || code == kInternal;
}

int dtype_of(int type) {
  switch (type) {
    case kFloat:
      return CASYNC_FLOAT32;
    case kHalf:
      return CASYNC_FLOAT16;
    case kBfloat16:
      return CASYNC_BFLOAT16;
    case kDouble:
      return CASYNC_FLOAT64;
    case kInt8:
      return CASYNC_INT8;
    case kInt16:
      return CASYNC_INT16;
    case kInt32:
      return CASYNC_INT32;
    case kInt64:
      return CASYNC_INT64;
    case kUint8:
      return CASYNC_UINT8;
    case kUint16:
      return CASYNC_UINT16;
    default:
      return CASYNC_BOOL;
  }
}

void check(const Status& status) {
  if (!status.ok()) throw Refusal{framework().TF_GetCode(status), status.text()};
}

// --- attributes ------------------------------------------------------------------------------------------------------

std::string text_of(TF_OpKernelConstruction* construction, const char* name, const Status& status) {
  std::int32_t entries = 0, bytes = 0;
  framework().TF_OpKernelConstruction_GetAttrSize(construction, name, &entries, &bytes, status);
  if (!status.ok()) return {};
  std::string text(static_cast<std::size_t>(bytes), '\0');
  if (bytes > 0) {
    framework().TF_OpKernelConstruction_GetAttrString(construction, name, text.data(), text.size(), status);
  }
  return text;
}

int number_of(TF_OpKernelConstruction* construction, const char* name, const Status& status) {
  std::int64_t number = 0;
  framework().TF_OpKernelConstruction_GetAttrInt64(construction, name, &number, status);
  return static_cast<int>(number);
}

float factor_of(TF_OpKernelConstruction* construction, const char* name, const Status& status) {
  float factor = 1;
  framework().TF_OpKernelConstruction_GetAttrFloat(construction, name, &factor, status);
  return factor;
}

// --- an execution ----------------------------------------------------------------------------------------------------

Held input_of(TF_OpKernelContext* context, int index) {
  const Status status;
  Held held;
  framework().TF_GetInput(context, index, &held.tensor, status);
  check(status);
  return held;
}

Held output_of(const Run& run, int index, int type, const std::vector<std::int64_t>& shape, std::size_t bytes) {
  const Status status;
  Held held(framework().TF_AllocateOutput(run.context, index, type, shape.data(), static_cast<int>(shape.size()), bytes,
                                          status));
  check(status);
  return held;
}

std::size_t row_bytes(const Run& run) {
  const std::size_t all = framework().TF_TensorByteSize(run.input.tensor);
  return run.shape[0] == 0 ? 0 : all / static_cast<std::size_t>(run.shape[0]);
}

/// Takes the input, and gives the output its memory: the input's where nobody else reads it.
void prepare(Run& run, casync_session* session) {
  const Framework& tf = framework();
  run.input = input_of(run.context, 0);
  for (int i = 0; i < tf.TF_NumDims(run.input.tensor); ++i) run.shape.push_back(tf.TF_Dim(run.input.tensor, i));
  const int kind = run.kernel->tensor.kind;
  if (kind != CASYNC_ALLREDUCE && kind != CASYNC_BROADCAST && run.shape.empty()) {
    throw Refusal{kInvalidArgument,
                  run.kernel->name + ": a tensor of rank zero has no rows: give it one dimension, of 1"};
  }
  if (kind == CASYNC_ALLGATHER || kind == CASYNC_ALLTOALL) return;  // it is known at the end how large the result is
  if (kind == CASYNC_REDUCESCATTER) {
    const std::int64_t ranks = api->ranks(session), rows = run.shape[0];
    std::vector<std::int64_t> mine = run.shape;
    mine[0] = rows / ranks + (api->rank(session) < rows % ranks ? 1 : 0);
    run.output = output_of(run, 0, run.kernel->type, mine, static_cast<std::size_t>(mine[0]) * row_bytes(run));
    return;
  }
  run.input = Held();  // who holds a tensor keeps its memory from being forwarded
  const Status status;
  const int candidate = 0;
  int forwarded = -1;
  run.output = Held(tf.TF_ForwardInputOrAllocateOutput(run.context, &candidate, 1, 0, run.shape.data(),
                                                       static_cast<int>(run.shape.size()), &forwarded, status));
  check(status);
  if (forwarded == 0) return;
  run.input = input_of(run.context, 0);
  if (kind == CASYNC_BROADCAST) {  // which works in place
    std::memcpy(run.output.data(), run.input.data(), tf.TF_TensorByteSize(run.input.tensor));
    run.input = Held();
  }
}

/// This rank's rows for each rank; as casync/collectives/alltoall.py has it.
std::vector<std::int64_t> splits_of(const Run& run, std::int64_t ranks) {
  const auto refuse = [&](const std::string& text) {
    return Refusal{kInvalidArgument, text + " (tensor " + run.kernel->name + ", " + std::to_string(run.shape[0]) +
                                         " rows, " + std::to_string(ranks) + " ranks)"};
  };
  const Held given = input_of(run.context, 1);
  const auto* const values = static_cast<const std::int64_t*>(given.data());
  std::vector<std::int64_t> splits(values, values + framework().TF_TensorByteSize(given.tensor) / sizeof(*values));
  if (splits.empty()) {
    if (run.shape[0] % ranks != 0) {
      throw refuse(
          "splits not provided, but first dimension of tensor is not an even multiple of the number of workers");
    }
    return std::vector<std::int64_t>(static_cast<std::size_t>(ranks), run.shape[0] / ranks);
  }
  if (static_cast<std::int64_t>(splits.size()) != ranks) {
    throw refuse("Number of entries in splits does not equal number of workers: there are " +
                 std::to_string(splits.size()));
  }
  std::int64_t sum = 0;
  for (const std::int64_t rows : splits) {
    if (rows < 0) throw refuse("splits has negative entries");
    sum += rows;
  }
  if (sum > run.shape[0]) {
    throw refuse("Sum of splits entries is greater than the first dimension of tensor: it is " + std::to_string(sum));
  }
  return splits;
}

/// The result of an allgather or an alltoall, which came with the outcome.
void copy_rows(Run& run, const casync_outcome& outcome) {
  std::vector<std::int64_t> shape = run.shape;
  shape[0] = 0;
  for (std::size_t i = 0; i < outcome.ranks; ++i) shape[0] += outcome.rows[i];
  const Held output = output_of(run, 0, run.kernel->type, shape, outcome.bytes);
  if (outcome.bytes > 0) std::memcpy(output.data(), outcome.data, outcome.bytes);
  if (run.kernel->tensor.kind != CASYNC_ALLTOALL) return;
  const std::size_t bytes = outcome.ranks * sizeof(std::int64_t);
  const Held received = output_of(run, 1, kInt64, {static_cast<std::int64_t>(outcome.ranks)}, bytes);
  std::memcpy(received.data(), outcome.rows, bytes);
}

/// Says that it is over: the context is not there any more afterwards.
void end(std::unique_ptr<Run> run) {
  Done done = std::move(run->done);
  run.reset();
  done();
}

void ended(void* user, const casync_outcome* outcome) {
  std::unique_ptr<Run> run(static_cast<Run*>(user));
  if (outcome->error != CASYNC_OK) {
    run->fail(code_of(outcome->error), outcome->text);
    if (ends_the_session(outcome->error)) {
      // Once in a session's life. Whether it was shut down is not known here, so the memory stays.
      run->input.tensor = run->output.tensor = nullptr;
    }
  } else if (run->output.tensor == nullptr) {
    try {
      copy_rows(*run, *outcome);
    } catch (const Refusal& refusal) {
      run->fail(refusal.code, refusal.text);
    }
  }
  end(std::move(run));
}

void refuse_unless(casync_error error) {
  if (error != CASYNC_OK) throw Refusal{code_of(error), api->error_text()};
}

void submit(std::unique_ptr<Run>& run, casync_session* session) {
  prepare(*run, session);
  const Kernel& kernel = *run->kernel;
  casync_tensor tensor = kernel.tensor;
  const bool own_rows = tensor.kind == CASYNC_ALLGATHER || tensor.kind == CASYNC_ALLTOALL;
  tensor.shape = run->shape.data() + own_rows;
  tensor.dimensions = run->shape.size() - own_rows;
  casync_operation operation{};
  refuse_unless(api->define(session, &tensor, &operation.tensor));
  if (tensor.kind == CASYNC_ALLREDUCE) {
    const Held terms = input_of(run->context, 1);
    const auto* const of = static_cast<const float*>(terms.data());
    if (framework().TF_TensorByteSize(terms.tensor) == 4 * sizeof(float)) {
      refuse_unless(api->set_optimizer(session, operation.tensor, of[0], of[1], of[2] != 0, of[3]));
    }
  }
  std::vector<std::int64_t> splits;
  if (tensor.kind == CASYNC_ALLTOALL) splits = splits_of(*run, api->ranks(session));
  operation.splits = splits.data();
  operation.ranks = splits.size();
  operation.rows = tensor.kind == CASYNC_ALLGATHER ? run->shape[0] : 0;
  operation.output = run->output.data();
  operation.input = run->input.tensor == nullptr ? operation.output : run->input.data();
  Run* const given = run.release();
  const casync_error error = api->submit(session, &operation, ended, given);
  if (error == CASYNC_OK) return;
  run.reset(given);
  refuse_unless(error);
}

const char* no_session(int process_set) {
  return process_set == 0 ? "CaSync has not been initialized; use hvd.init()."
                          : "Process set provided does not exist, or this rank is not a member of it: give it to "
                            "hvd.init(process_sets=[...]), and ask process_set.included() before an operation is made";
}

}  // namespace

template <int kKind>
void* create(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<Kernel>();
  const Status status;
  framework().TF_OpKernelConstruction_GetAttrType(construction, "T", &kernel->type, status);
  kernel->process_set = number_of(construction, "process_set", status);
  kernel->tensor.kind = kKind;
  kernel->tensor.dtype = dtype_of(kernel->type);
  kernel->tensor.op = number_of(construction, "reduce_op", status);
  kernel->tensor.root = number_of(construction, "root", status);
  kernel->tensor.prescale = factor_of(construction, "prescale", status);
  kernel->tensor.postscale = factor_of(construction, "postscale", status);
  kernel->tensor.name = (kernel->name = text_of(construction, "tensor_name", status)).c_str();
  kernel->tensor.site = (kernel->site = text_of(construction, "site", status)).c_str();
  kernel->tensor.compression = (kernel->compression = text_of(construction, "compression", status)).c_str();
  kernel->tensor.topology = (kernel->topology = text_of(construction, "topology", status)).c_str();
  if (!status.ok()) framework().TF_OpKernelConstruction_Failure(construction, status);
  return kernel.release();
}

const OpSpec kOpSpecs[5] = {{"CasyncAllreduce", CASYNC_ALLREDUCE, create<CASYNC_ALLREDUCE>},
                            {"CasyncAllgather", CASYNC_ALLGATHER, create<CASYNC_ALLGATHER>},
                            {"CasyncBroadcast", CASYNC_BROADCAST, create<CASYNC_BROADCAST>},
                            {"CasyncReducescatter", CASYNC_REDUCESCATTER, create<CASYNC_REDUCESCATTER>},
                            {"CasyncAlltoall", CASYNC_ALLTOALL, create<CASYNC_ALLTOALL>}};

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

void use(const casync_c_api& table) { api = &table; }

void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  static const bool kIsKnown = Done::is_known(done);
  if (!kIsKnown) {
    const Status status;
    framework().TF_SetStatus(status, kUnimplemented,
                             "this release of TensorFlow ends asynchronous kernels in a way that CaSync does not know: "
                             "use one of those that its manual lists");
    framework().TF_OpKernelContext_Failure(context, status);
    return framework().TF_RunAsyncOpKernelDoneCallback(done);
  }
  auto run = std::make_unique<Run>(Run{static_cast<Kernel*>(kernel), context, Done(done), {}, {}, {}});
  const int process_set = run->kernel->process_set;
  casync_session* const session = api == nullptr ? nullptr : api->hold(process_set);
  try {
    if (session == nullptr) throw Refusal{kFailedPrecondition, no_session(process_set)};
    submit(run, session);
  } catch (const Refusal& refusal) {
    run->fail(refusal.code, refusal.text);
    end(std::move(run));
  }
  if (session != nullptr) api->release(session);
}

}  // namespace casync::tensorflow

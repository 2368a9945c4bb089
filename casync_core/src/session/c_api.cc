#include "session/c_api.hpp"

#include <exception>
#include <span>
#include <stdexcept>
#include <string>

#include "casync/error.hpp"
#include "session/published.hpp"

namespace casync {
namespace {

static_assert(CASYNC_JOIN == static_cast<int>(OpKind::join) && CASYNC_JOIN + 1 == kOpKindName.size());
static_assert(CASYNC_ALLTOALL == static_cast<int>(OpKind::alltoall));
static_assert(CASYNC_REDUCESCATTER == static_cast<int>(OpKind::reducescatter));
static_assert(CASYNC_BARRIER == static_cast<int>(OpKind::barrier));
static_assert(CASYNC_BROADCAST == static_cast<int>(OpKind::broadcast));
static_assert(CASYNC_ALLGATHER == static_cast<int>(OpKind::allgather));
static_assert(CASYNC_UINT16 == static_cast<int>(DType::uint16) && CASYNC_UINT16 + 1 == kDTypeName.size());
static_assert(CASYNC_BOOL == static_cast<int>(DType::boolean));
static_assert(CASYNC_BFLOAT16 == static_cast<int>(DType::bfloat16));
static_assert(CASYNC_FLOAT64 == static_cast<int>(DType::float64));
static_assert(CASYNC_INT64 == static_cast<int>(DType::int64));
static_assert(CASYNC_PRODUCT == static_cast<int>(ReduceOp::product) && CASYNC_PRODUCT + 1 == kReduceOpName.size());
static_assert(CASYNC_ADASUM == static_cast<int>(ReduceOp::adasum));

thread_local std::string last_error;

Session& session_of(casync_session* session) { return *reinterpret_cast<Session*>(session); }

casync_error number_of(ErrorKind kind) { return static_cast<casync_error>(kind) + 1; }

/// `call()`, whose exceptions become numbers.
template <typename Call>
casync_error guarded(const Call& call) noexcept {
  try {
    call();
    return CASYNC_OK;
  } catch (const Error& error) {
    last_error = error.what();
    return number_of(error.facts.kind);
  } catch (const std::out_of_range&) {
    last_error = "no tensor of this session has this number: take the one that define gave";
    return number_of(ErrorKind::invalid_argument);
  } catch (const std::exception& error) {
    last_error = error.what();
    return number_of(ErrorKind::internal);
  }
}

/// One of the numbers of an enum that has a name for each.
template <typename Enum>
Enum checked(const char* what, std::int32_t number, std::size_t count) {
  if (number < 0 || static_cast<std::size_t>(number) >= count) {
    throw InvalidArgument(detail::concat("the ", what, " ", number, " of a casync_tensor is not known"));
  }
  return static_cast<Enum>(number);
}

float scale(double told) { return told == 0 ? 1.0F : static_cast<float>(told); }

/// As casync/tensors/signature.py, so that ranks may meet whose glue is another one.
void set_shape(Signature& signature, std::span<const std::int64_t> shape) {
  const bool own_rows = signature.kind == OpKind::allgather || signature.kind == OpKind::alltoall;
  std::string dims = own_rows ? "*" : "";
  for (const std::int64_t extent : shape) {
    if (extent < 0) throw InvalidArgument(detail::concat("the extent ", extent, " of a casync_tensor is negative"));
    dims += detail::concat(dims.empty() ? "" : ", ", extent);
  }
  if (shape.size() == 1 && !own_rows) dims += ",";
  signature.dims = "(" + dims + ")";
  signature.shape = {own_rows ? 0 : 1, 1};
  if (!own_rows && !shape.empty()) {
    signature.shape.rows = shape.front();
    shape = shape.subspan(1);
  }
  for (const std::int64_t extent : shape) signature.shape.cols *= extent;
}

casync_error define(casync_session* session, const casync_tensor* tensor, std::uint32_t* number) {
  return guarded([&] {
    if (tensor->name == nullptr) throw InvalidArgument("a casync_tensor has no name");
    Signature signature;
    signature.kind = checked<OpKind>("kind", tensor->kind, kOpKindName.size());
    signature.dtype = checked<DType>("dtype", tensor->dtype, kDTypeName.size());
    signature.op = checked<ReduceOp>("op", tensor->op, kReduceOpName.size());
    signature.root = tensor->root;
    set_shape(signature, {tensor->shape, tensor->dimensions});
    signature.prescale = scale(tensor->prescale);
    signature.postscale = scale(tensor->postscale);
    signature.compression = tensor->compression == nullptr ? "none" : tensor->compression;
    signature.topology = tensor->topology == nullptr ? "auto" : tensor->topology;
    signature.priority = tensor->priority;
    *number = session_of(session).define(tensor->name, signature, tensor->site == nullptr ? "" : tensor->site);
  });
}

/// The call to C of a completion; what the outcome points to is held here.
void call(casync_completion completion, void* user, const Outcome& outcome) {
  casync_outcome told{};
  told.text = told.tensor = "";
  told.peer = -1;
  told.data = outcome.result.bytes.data();
  told.bytes = outcome.result.bytes.size();
  told.rows = outcome.result.rows.data();
  told.ranks = outcome.result.rows.size();
  if (outcome.failure == nullptr) return completion(user, &told);
  try {
    std::rethrow_exception(outcome.failure);
  } catch (const Error& error) {
    told.error = number_of(error.facts.kind);
    told.text = error.what();
    told.tensor = error.facts.tensor.c_str();
    if (error.facts.peer) told.peer = *error.facts.peer;
    completion(user, &told);
  }
}

casync_error submit(casync_session* session, const casync_operation* operation, casync_completion completion,
                    void* user) {
  return guarded([&] {
    session_of(session).submit(operation->tensor, operation->input, operation->output,
                               [completion, user](Outcome&& outcome) { call(completion, user, outcome); },
                               operation->rows, operation->more == 0,
                               {operation->splits, operation->splits + operation->ranks});
  });
}

const char* error_text() { return last_error.c_str(); }

casync_session* hold(std::int32_t process_set) {
  Session* const session = published().hold(process_set);
  return session == nullptr ? nullptr : c_session(*session);
}

void release(casync_session* session) { published().release(session_of(session)); }

std::int32_t rank(casync_session* session) { return session_of(session).rank(); }
std::int32_t ranks(casync_session* session) { return session_of(session).size(); }

casync_error set_optimizer(casync_session* session, std::uint32_t tensor, float lr, float momentum,
                           std::int32_t nesterov, float loss_scale) {
  return guarded([&] { session_of(session).set_optimizer(tensor, lr, momentum, nesterov != 0, loss_scale); });
}

}  // namespace

const casync_c_api& c_api() {
  static constexpr casync_c_api kTable{
      sizeof(casync_c_api), CASYNC_C_API_VERSION, define, submit, error_text, hold, release, rank, ranks,
      set_optimizer};
  return kTable;
}

}  // namespace casync

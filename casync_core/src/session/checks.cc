#include "session/checks.hpp"

#include <algorithm>

#include "casync/error.hpp"

namespace casync {

void check_signature(const std::string& name, const Signature& signature, Rank size) {
  const auto refuse = [&](const auto&... parts) {
    throw InvalidArgument(detail::concat("tensor ", name, ": ", parts...));
  };
  if (signature.kind == OpKind::broadcast && (signature.root < 0 || static_cast<Rank>(signature.root) >= size)) {
    refuse("broadcast root rank ", signature.root, " is not one of 0 to ", size - 1);
  }
  const bool sums = signature.op == ReduceOp::average || signature.op == ReduceOp::sum;
  if (signature.kind == OpKind::reducescatter && !sums) {
    refuse("a reducescatter goes with Average and Sum, not with ", name_of(signature.op));
  }
  const bool scales = sums || signature.op == ReduceOp::adasum;
  if (signature.kind == OpKind::allreduce && !scales && (signature.prescale != 1.0F || signature.postscale != 1.0F)) {
    refuse("prescale and postscale factors go with Average, Sum and Adasum, not with ", name_of(signature.op));
  }
}

void check_splits(const Definition& definition, const std::vector<std::int64_t>& splits, Rank size) {
  const std::size_t wanted = definition.signature.kind == OpKind::alltoall ? size : 0;
  const bool negative = std::any_of(splits.begin(), splits.end(), [](std::int64_t rows) { return rows < 0; });
  if (splits.size() == wanted && !negative) return;
  throw InvalidArgument(detail::concat("tensor ", definition.name, ": ", splits.size(), " splits",
                                       negative ? ", some negative," : "", " where an ",
                                       name_of(definition.signature.kind), " takes ", wanted));
}

}  // namespace casync

/// Writes casync/_constants.py, what Python must know of the core where the core itself may not load: names in the
/// order of their numbers, and defaults. The build runs it: `casync_constants FILE`.
#include <fstream>
#include <iostream>
#include <string_view>

#include "casync/coordinator.hpp"
#include "casync/error.hpp"
#include "casync/log.hpp"
#include "casync/plan.hpp"
#include "casync/route.hpp"
#include "casync/session.hpp"
#include "casync/types.hpp"

namespace casync {
namespace {

template <typename Names>
void put_names(std::ostream& out, std::string_view constant, const Names& names) {
  out << constant << ": Final = (\n";
  for (const std::string_view name : names) out << "    \"" << name << "\",\n";
  out << ")\n";
}

/// By the name of each route: its phases, and so what a list of phases in a plan means.
void put_phases(std::ostream& out) {
  out << "PHASES: Final = {\n";
  for (const auto& names : {route_names(), two_level_names()}) {
    for (const std::string_view name : names) {
      out << "    \"" << name << "\": (\n";
      for (const Phase& phase : make_route(name)->phases())
        out << "        (\"" << name_of(phase.scope) << "\", \"" << name_of(phase.routine) << "\"),\n";
      out << "    ),\n";
    }
  }
  out << "}\n";
}

template <typename Number>
void put_number(std::ostream& out, std::string_view constant, Number value) {
  out << constant << ": Final = " << value << "\n";
}

void put(std::ostream& out) {
  out << "\"\"\"What Python shares with the compiled core. Made by the build from casync_core/include: do not "
         "edit.\"\"\"\n\nfrom typing import Final\n\n";
  put_names(out, "ERROR_KINDS", kErrorKindName);
  put_names(out, "OP_KINDS", kOpKindName);
  put_names(out, "REDUCE_OPS", kReduceOpName);
  put_names(out, "DTYPES", kDTypeName);
  std::vector<std::string_view> floating;
  for (std::size_t i = 0; i < kDTypeName.size(); ++i) {
    if (is_floating(static_cast<DType>(i))) floating.push_back(kDTypeName[i]);
  }
  put_names(out, "FLOATING_DTYPES", floating);
  put_names(out, "TOPOLOGIES", route_names());
  put_phases(out);
  put_names(out, "COORDINATORS", kPolicyName);
  put_names(out, "DEVICE_LANES", kDeviceLaneName);
  put_names(out, "LOG_LEVELS", kLogLevelName);
  const SessionOptions options;
  put_number(out, "HANDLE_BITS", kHandleBits);
  put_number(out, "MIN_NUMEL", options.min_numel);
  put_number(out, "PARTITION_BYTES", options.partition_bytes);
  put_number(out, "POOL_BYTES", options.pool_bytes);
  put_number(out, "WORKER_THREADS", options.worker_threads);
  put_number(out, "COORDINATOR_BATCH_BYTES", options.coordinator.batch_bytes);
  out << std::showpoint;
  put_number(out, "STALL_WARNING_S", options.stall_warning_s);
  put_number(out, "TIMEOUT_S", options.timeout_s);
  put_number(out, "PEER_TIMEOUT_S", options.peer_timeout_s);
  put_number(out, "COORDINATOR_TIMEOUT_S", static_cast<double>(options.coordinator.timeout) * 1e-9);
}

}  // namespace
}  // namespace casync

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: casync_constants FILE\n";
    return 2;
  }
  std::ofstream file(argv[1]);
  casync::put(file);
  return file.flush() ? 0 : 1;
}

#pragma once

#include "codec/cuda/kernels/lanes.hpp"
#include "codec/cuda/kernels/report_arguments.hpp"
#include "codec/cuda/kernels/team.hpp"

/// What the host is told of a segment.
namespace casync::codec::cuda {

/// Any number of teams.
template <typename Team>
CASYNC_DEVICE void look_at_values(const Team& team, const LookBatch& batch) {
  bool lost = false;
  const std::int64_t stride = std::int64_t{team.count()} * team.size();
  for (std::int64_t i = std::int64_t{team.index()} * team.size() + team.rank(); i < batch.n; i += stride)
    lost |= !finite(batch.values[i]);
  if (lost) batch.report->nonfinite = 1;
}

/// One team.
template <typename Team>
CASYNC_DEVICE void report_encoded(const Team& team, const EncodedBatch& batch) {
  for (std::int64_t unit = team.rank(); unit < batch.count; unit += team.size()) {
    if (batch.encoded[unit].nonfinite) batch.report->nonfinite = 1;
    if (batch.encoded[unit].bytes < 0) batch.report->overflow = 1;
  }
  if (team.rank() == 0) batch.report->payload_bytes = batch.at[batch.count];
}

/// One team.
template <typename Team>
CASYNC_DEVICE void report_decoded(const Team& team, const DecodedBatch& batch) {
  bool refused = batch.at[batch.count] != batch.bytes;
  for (std::int64_t unit = team.rank(); unit < batch.count; unit += team.size())
    refused |= batch.used[unit] != batch.at[unit + 1] - batch.at[unit];
  refused = team.any(refused);
  if (team.rank() == 0 && refused && batch.report->refused < 0) batch.report->refused = batch.source;
}

CASYNC_KERNEL(casync_look_at_float32, BlockTeam<256>, LookBatch, look_at_values)
CASYNC_KERNEL(casync_report_encoded, BlockTeam<256>, EncodedBatch, report_encoded)
CASYNC_KERNEL(casync_report_decoded, BlockTeam<256>, DecodedBatch, report_decoded)

}  // namespace casync::codec::cuda

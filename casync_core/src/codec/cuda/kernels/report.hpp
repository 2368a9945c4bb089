#pragma once

#include "codec/cuda/kernels/lanes.hpp"
#include "codec/cuda/kernels/raw_arguments.hpp"
#include "codec/cuda/kernels/report_arguments.hpp"
#include "codec/cuda/kernels/team.hpp"

/// What the host is told of a segment.
namespace casync::codec::cuda {

/// At a piece of them, as raw.hpp has it.
template <typename Team>
CASYNC_DEVICE void look_at_values(const Team& team, const LookBatch& batch, std::int64_t piece) {
  bool lost = false;
  const std::int64_t end = smaller((piece + 1) * kPiece, batch.n);
  for (std::int64_t i = piece * kPiece + team.rank(); i < end; i += team.size()) lost |= !finite(batch.values[i]);
  if (lost) batch.report->nonfinite = 1;
}

template <typename Team>
CASYNC_DEVICE void report_encoded(const Team& team, const EncodedBatch& batch, std::int64_t /*item*/) {
  for (std::int64_t unit = team.rank(); unit < batch.count; unit += team.size()) {
    if (batch.encoded[unit].nonfinite) batch.report->nonfinite = 1;
    if (batch.encoded[unit].bytes < 0) batch.report->overflow = 1;
  }
  if (team.rank() == 0) batch.report->payload_bytes = batch.at[batch.count];
}

template <typename Team>
CASYNC_DEVICE void report_decoded(const Team& team, const DecodedBatch& batch, std::int64_t /*item*/) {
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

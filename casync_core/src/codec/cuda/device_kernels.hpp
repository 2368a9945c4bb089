#pragma once

#include "codec/cuda/kernels/arguments.hpp"
#include "codec/cuda/kernels/lanes.hpp"
#include "codec/cuda/kernels/many.hpp"
#include "codec/cuda/kernels/scratch.hpp"

/// What the host knows of a codec's device code: how each kernel is launched, and how much scratch memory it takes. The
/// tables are generated from CompLL, as plain C++, next to the device code that NVRTC compiles.
namespace casync::codec::cuda {

enum class Grid : std::uint8_t {
  teams,  ///< a team is a block
  wide    ///< a team is several blocks, which wait for each other: by a cooperative launch
};

/// It takes `Many` of its struct of arguments.hpp, and the front of the scratch memory.
struct DeviceKernel {
  const char* name = nullptr;  ///< in the compiled device code; null: the file has no use for it
  int threads = 0;             ///< of a block
  Grid grid = Grid::teams;
  std::int64_t argument_bytes = 0;  ///< of `Many` of the struct
};

/// Those of one codec for one choice of widths.
struct DeviceKernels {
  DeviceKernel encode = {};   ///< EncodeBatch
  DeviceKernel decode = {};   ///< DecodeBatch
  DeviceKernel place = {};    ///< GatherBatch
  DeviceKernel move = {};     ///< GatherBatch
  DeviceKernel locate = {};   ///< LocateBatch
  DeviceKernel propose = {};  ///< ProposeBatch
  DeviceKernel agree = {};    ///< AgreeBatch

  std::int64_t (*scratch_bytes)(const Units& units) = nullptr;  ///< of `units.scratch`, enough for each of them
  std::int64_t (*scratch_each)(const Units& units) = nullptr;   ///< of a team: `units.scratch_each`
};

inline std::int64_t teams_of(const Units& units) { return units.count < units.teams ? units.count : units.teams; }

/// How the blocks that a device runs at a time are divided among units, of which the longest has so many elements.
struct Division {
  int teams = 1;   ///< at work at a time
  int blocks = 1;  ///< of each
};
/// For the kernels of units, of which `kernel` is one. Units come first: blocks that share one wait for each other. No
/// thread has less than sixteen elements, since it looks at so many in a selection (operators/select.hpp).
constexpr Division divide(const DeviceKernel& kernel, std::int64_t units, std::int64_t longest, int most_blocks) {
  const bool wide = kernel.grid == Grid::wide;
  const std::int64_t most = wide && most_blocks > kMostBlocks ? kMostBlocks : most_blocks < 1 ? 1 : most_blocks;
  const std::int64_t teams = units < 1 ? 1 : units < most ? units : most;
  const std::int64_t useful = wide ? (longest + 16 * kernel.threads - 1) / (16 * kernel.threads) : 1;
  const std::int64_t blocks = useful < most / teams ? useful : most / teams;
  return {static_cast<int>(teams), static_cast<int>(blocks < 1 ? 1 : blocks)};
}

/// Bytes for one team, whose unit is the longest. `Sizes` is generated.
template <typename Sizes>
std::int64_t scratch_of_team(const Units& units, int arrays, int reductions) {
  Facts facts = units.facts;
  facts.parameters = units.parameters;
  facts.n = units.longest;
  return scratch_of(Sizes::room_of(facts), arrays, reductions);
}
template <typename Sizes>
std::int64_t scratch_each(const Units& units) {
  return scratch_of_team<Sizes>(units, Sizes::kArrays, Sizes::kReductions);
}
template <typename Sizes>
std::int64_t scratch_bytes(const Units& units) {
  const std::int64_t all = teams_of(units) * scratch_each<Sizes>(units);
  const std::int64_t one = scratch_of_team<Sizes>(units, Sizes::kProposeArrays, Sizes::kProposeReductions);
  return kGridBytes + (all > one ? all : one);
}

}  // namespace casync::codec::cuda

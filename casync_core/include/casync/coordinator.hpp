#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "casync/types.hpp"

/// How a session decides which messages go over the links now.
namespace casync {

inline constexpr std::array<std::string_view, 2> kPolicyName{"local", "global"};

/// All ranks must have the same options. Only the policy "global" uses `batch_bytes` and `timeout`.
struct CoordinatorOptions {
  std::string policy = "local";  ///< one of kPolicyName
  /// Bytes at which a batch is full. A message of more goes alone.
  std::uint64_t batch_bytes = 1 << 20;
  /// Nanoseconds after which a batch that is not full is asked for, counted from when its first message was ready.
  Nanoseconds timeout = 500'000;
};

}  // namespace casync

#pragma once

#include <string_view>

#include "casync/transport.hpp"

namespace casync::transport {

/// Where what arrives during close goes.
class Nobody final : public TransportSink {
 public:
  void on_head(Rank, std::span<const std::byte>) override {}
  void on_sent(std::uint64_t) override {}
  void on_body(std::uint64_t) override {}
  void on_peer_down(Rank, std::string_view) override {}
};

}  // namespace casync::transport

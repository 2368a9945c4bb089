#pragma once

#include <cstdint>

#include "engine/control.hpp"
#include "engine/event.hpp"

namespace casync {

/// Where the parts of one Engine put their actions, and how they speak to the Engines of the other ranks. An Engine is
/// handed a sink with every call; `open` passes it on.
class Outbox {
 public:
  Outbox(std::uint32_t self, std::uint32_t members) : self_(self), members_(members) {}

  void open(ActionSink& sink) { sink_ = &sink; }
  void emit(const Action& action) { sink_->emit(action); }

  /// `message` is one of control.hpp.
  template <typename Message>
  void tell(std::uint32_t peer, const Message& message) {
    bytes_.clear();
    put(bytes_, message);
    send(peer);
  }
  template <typename Message>
  void tell_all(const Message& message) {
    bytes_.clear();
    put(bytes_, message);
    for (std::uint32_t peer = 0; peer < members_; ++peer) {
      if (peer != self_) send(peer);
    }
  }
  void tell_plain(std::uint32_t peer, ControlKind kind) {
    bytes_.clear();
    put_plain(bytes_, kind);
    send(peer);
  }

 private:
  void send(std::uint32_t peer) { emit(action::Control{peer, bytes_}); }

  std::uint32_t self_;
  std::uint32_t members_;
  ActionSink* sink_ = nullptr;
  Bytes bytes_;  // scratch
};

}  // namespace casync

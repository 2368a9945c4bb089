#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "executor/operation.hpp"
#include "executor/run/workers.hpp"

namespace casync {

/// What has come for a rank since its last turn, in order: from its program, and from its workers.
struct Inbox {
  struct Item {
    enum class Kind : std::uint8_t { define, submit, abort, forget } kind;
    std::uint32_t registration = 0;
    Operation* operation = nullptr;
    // On the heap, because most items are submits, and a burst of them is read and written once each.
    std::unique_ptr<Request> definition{};
    std::unique_ptr<std::string> why{};
    std::unique_ptr<Definition> forgotten{};
  };

  void define(std::uint32_t registration, Request definition) {
    items.push_back({Item::Kind::define, registration, nullptr, std::make_unique<Request>(std::move(definition))});
  }
  void submit(std::uint32_t registration, Operation* operation) {
    items.push_back({Item::Kind::submit, registration, operation});
  }
  /// The registration will not be submitted again; `definition` is what it was.
  void forget(std::uint32_t registration, std::unique_ptr<Definition> definition) {
    items.push_back({.kind = Item::Kind::forget, .registration = registration, .forgotten = std::move(definition)});
  }
  void abort(std::string why) {
    items.push_back({.kind = Item::Kind::abort, .why = std::make_unique<std::string>(std::move(why))});
  }

  std::vector<Item> items;
  Workers::Finished jobs;
};

}  // namespace casync

// Bytes that are not what they must be, from rank 1 to rank 0: every rank hears of it as CorruptPayload, with a text
// that names both and, where it is known, the tensor; and the logs replay.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>

#include "casync/error.hpp"
#include "executor/frames/frame.hpp"
#include "record/event_log.hpp"
#include "session/world.hpp"

namespace casync {
namespace {

using Bytes = std::vector<std::byte>;

/// Changes the first entry of `kind` in a frame by `change(entry, its bytes)`, and makes its checksum fit again.
/// Returns whether there was one.
template <typename Change>
bool forge(Bytes& frame, EntryKind kind, const Change& change) {
  constexpr std::uint32_t kTag = 0;  // the default of SessionOptions
  bool found = false;
  FrameWriter writer(kTag, frame.size());
  for (FrameReader reader(kTag, frame); reader.next();) {
    FrameEntry entry = reader.entry();
    Bytes content(reader.bytes().begin(), reader.bytes().end());
    if (!found && entry.kind == kind) {
      found = true;
      change(entry, content);
      entry.size = content.size();
    }
    writer.append(entry, content);
  }
  frame = std::move(writer.complete());
  return found;
}

/// What goes wrong once; each says whether it had anything to spoil.
struct Case {
  std::string name;
  std::string codec;
  std::int64_t numel;
  bool names_tensor;
  std::function<bool(Bytes&)> head;
  std::function<bool(Bytes&)> body;

  friend void PrintTo(const Case& what, std::ostream* out) { *out << what.name; }
};

/// Passes everything on, but spoils once what rank 1 sends to rank 0.
class Spoiler final : public Transport {
 public:
  Spoiler(std::shared_ptr<Transport> inner, const Case& what) : inner_(std::move(inner)), what_(what) {}

  Rank rank() const override { return inner_->rank(); }
  Rank size() const override { return inner_->size(); }
  std::size_t head_bytes() const override { return inner_->head_bytes(); }
  void send_head(Rank peer, Bytes&& head) override {
    if (wanted(peer) && what_.head) spoilt_ = what_.head(head);
    inner_->send_head(peer, std::move(head));
  }
  void send_body(Rank peer, std::span<const std::byte> body, std::uint64_t id) override {
    if (!wanted(peer) || !what_.body) {
      inner_->send_body(peer, body, id);
      return;
    }
    Bytes& changed = kept_.emplace_back(body.begin(), body.end());
    spoilt_ = what_.body(changed);
    inner_->send_body(peer, changed, id);
  }
  void accept(Rank peer, std::span<std::byte> body, std::uint64_t id) override { inner_->accept(peer, body, id); }
  bool poll(TransportSink& sink) override { return inner_->poll(sink); }
  bool moving() const override { return inner_->moving(); }
  void wait(Nanoseconds timeout) override { inner_->wait(timeout); }
  void wake() override { inner_->wake(); }
  bool wakes() const override { return inner_->wakes(); }
  const TransportCounters& counters() const override { return inner_->counters(); }
  void flush(Nanoseconds timeout) override { inner_->flush(timeout); }
  void close(Nanoseconds patience) override { inner_->close(patience); }

 private:
  bool wanted(Rank peer) const { return rank() == 1 && peer == 0 && !spoilt_; }

  std::shared_ptr<Transport> inner_;
  const Case& what_;
  bool spoilt_ = false;
  std::deque<Bytes> kept_;
};

class Corrupt : public testing::TestWithParam<Case> {};

TEST_P(Corrupt, EndsTheSessionOnEveryRankAsSuch) {
  constexpr int kSize = 3;
  const Case& what = GetParam();
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / detail::concat("casync_corrupt_", getpid(), what.name);
  std::filesystem::create_directory(folder);
  std::mutex mutex;
  std::vector<std::string> texts;
  std::deque<std::vector<float>> memory(kSize, std::vector<float>(static_cast<std::size_t>(what.numel)));
  spawn(
      kSize,
      [&](Session& session) {
        auto& values = memory[static_cast<std::size_t>(session.rank())];
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 17) - 8.5F;
        Signature signature;
        signature.shape = {what.numel, 1};
        signature.compression = what.codec;
        signature.topology = "auto";
        const auto registration = session.define("w", signature, "corrupt_test.cc");
        std::string text = "nothing";
        for (int step = 0; step < 3; ++step) {
          try {
            run(session, registration, values.data(), values.data());
          } catch (const CorruptPayload& error) {
            text = error.what();
          } catch (const Error& error) {
            text = detail::concat("of another kind: ", error.what());
          }
        }
        const std::lock_guard lock(mutex);
        texts.push_back(text);
      },
      [&](Rank rank, SessionOptions& options) { options.event_log = (folder / std::to_string(rank)).string(); },
      [&](std::shared_ptr<Transport> inner) { return std::make_shared<Spoiler>(std::move(inner), what); });
  ASSERT_EQ(texts.size(), static_cast<std::size_t>(kSize));
  for (const std::string& text : texts) {
    EXPECT_EQ(text, texts.front());
    for (const char* part : {"rank 1", "rank 0"}) EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_EQ(text.find("tensor w") != std::string::npos, what.names_tensor) << text;
    EXPECT_EQ(text.find("of another kind"), std::string::npos) << text;
  }
  for (Rank rank = 0; rank < kSize; ++rank) EXPECT_EQ(replay((folder / std::to_string(rank)).string()).difference, "");
  std::filesystem::remove_all(folder);
}

bool flip(Bytes& bytes) {
  bytes.back() ^= std::byte{1};
  return true;
}

bool cut(Bytes& bytes, std::size_t left) {
  bytes.resize(left);
  return true;
}

const Case kCases[] = {
    {"AFlippedBit", "none", 1000, false, flip, {}},
    {"AFrameCutShort", "none", 1000, false, [](Bytes& head) { return cut(head, head.size() - 3); }, {}},
    {"AFrameCutInItsHeader", "none", 1000, false, [](Bytes& head) { return cut(head, 10); }, {}},
    {"AControlMessageThatIsNone",
     "none",
     1000,
     false,
     [](Bytes& head) {
       return forge(head, EntryKind::control, [](FrameEntry&, Bytes& content) { content.front() = std::byte{0x77}; });
     },
     {}},
    {"AnEntryThatIsNone",
     "none",
     1000,
     false,
     [](Bytes& head) {
       return forge(head, EntryKind::control,
                    [](FrameEntry& entry, Bytes&) { entry.kind = static_cast<EntryKind>(9); });
     },
     {}},
    {"AMessageThatIsNotInThePlan",
     "none",
     1000,
     true,
     [](Bytes& head) { return forge(head, EntryKind::raw, [](FrameEntry& entry, Bytes&) { entry.key.tag = 999; }); },
     {}},
    {"AContributionCutShort",
     "none",
     1000,
     true,
     [](Bytes& head) {
       return forge(head, EntryKind::raw, [](FrameEntry&, Bytes& content) { content.resize(content.size() - 4); });
     },
     {}},
    {"APayloadCutShort",
     "onebit",
     50'000,
     true,
     [](Bytes& head) {
       return forge(head, EntryKind::encoded, [](FrameEntry&, Bytes& content) { content.resize(content.size() - 1); });
     },
     {}},
    {"AnEncodedBodyWithAFlippedBit", "onebit", 1 << 20, true, {}, flip},
    {"APayloadThatTheCodecRefuses",
     "test_topk(ratio=0.01)",
     40'000,
     true,
     [](Bytes& head) {
       return forge(head, EntryKind::encoded,
                    [](FrameEntry&, Bytes& content) { std::memset(content.data(), 0x55, 4); });
     },
     {}},
};

INSTANTIATE_TEST_SUITE_P(, Corrupt, testing::ValuesIn(kCases), [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace casync

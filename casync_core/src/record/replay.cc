#include <deque>
#include <iterator>

#include "casync/error.hpp"
#include "coordinator/make_policy.hpp"
#include "record/event_log.hpp"
#include "record/log_record.hpp"

namespace casync {
namespace {

/// The records of a log, one after the other.
class Reader {
 public:
  explicit Reader(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw InvalidArgument(detail::concat("the event log ", path, " cannot be read"));
    const std::vector<char> content{std::istreambuf_iterator<char>(file), {}};
    const auto* bytes = reinterpret_cast<const std::byte*>(content.data());
    content_.assign(bytes, bytes + content.size());
  }

  /// The next record; empty at the end, or where the last one was cut short.
  std::span<const std::byte> next() {
    ByteReader reader(std::span<const std::byte>(content_).subspan(at_));
    if (reader.left() < sizeof(std::uint32_t)) return {};
    const auto length = reader.get<std::uint32_t>();
    if (reader.left() < length) return {};
    at_ += sizeof(length) + length;
    return reader.take(length);
  }

 private:
  std::vector<std::byte> content_;
  std::size_t at_ = 0;
};

/// Holds every action against the log.
class Comparison final : public ActionSink {
 public:
  /// What the next cause led to, as logged.
  void expect(std::deque<std::string> actions) { expected_ = std::move(actions); }

  void emit(const Action& action) override {
    ++count_;
    if (!difference_.empty()) return;
    const std::string found = describe(action);
    if (expected_.empty()) {
      if (more_.empty()) more_ = "the Engine does more than in the log: " + found;
      return;
    }
    if (expected_.front() != found) {
      difference_ = detail::concat("the log has ", expected_.front(), "\nthe Engine does ", found);
    }
    expected_.pop_front();
  }
  /// The log holds all that a cause led to.
  void finish() {
    if (difference_.empty()) difference_ = more_;
    if (difference_.empty() && !expected_.empty()) {
      difference_ = "the Engine does less than in the log: " + expected_.front();
    }
  }
  const std::string& difference() const { return difference_; }
  std::uint64_t count() const { return count_; }

 private:
  std::deque<std::string> expected_;
  std::uint64_t count_ = 0;
  std::string difference_;
  std::string more_;
};

}  // namespace

Replay replay(const std::string& path) {
  Reader records(path);
  ByteReader header(records.next());
  if (header.left() < 16 || header.get<std::uint64_t>() != log::kMagic)
    throw CorruptPayload(detail::concat(path, " is not an event log"));
  if (const auto version = header.get<std::uint32_t>(); version != log::kVersion) {
    throw CorruptPayload(
        detail::concat(path, " is an event log of version ", version, "; this is version ", log::kVersion));
  }
  CoordinatorOptions coordinator;
  coordinator.policy = header.get_text();
  coordinator.batch_bytes = header.get<std::uint64_t>();
  coordinator.timeout = header.get<Nanoseconds>();
  EngineOptions options = log::get_options(header);
  const auto member = options.member;
  const auto members = static_cast<Rank>(options.host_of.size());

  Comparison comparison;
  Engine engine(std::move(options), make_policy(coordinator, member, members));

  Replay result;
  log::Stored stored;
  auto record = records.next();
  while (!record.empty() && result.difference.empty()) {
    // A cause and, up to the next cause, what it led to.
    ByteReader cause(record);
    const auto kind = cause.get<log::Record>();
    std::deque<std::string> actions;
    for (record = records.next(); !record.empty(); record = records.next()) {
      ByteReader reader(record);
      if (reader.get<log::Record>() != log::Record::action) break;
      actions.push_back(reader.get_text());
    }
    comparison.expect(std::move(actions));
    Nanoseconds now = 0;
    std::string what;
    try {
      if (kind == log::Record::event) {
        const Event event = log::get_event(cause, now, stored);
        what = name_of(event);
        engine.apply(event, now, comparison);
      } else {
        now = log::get_time(cause);
        what = "decide";
        engine.decide(now, comparison);
      }
    } catch (const Error&) {                 // as in the log, where the abort that follows is an event of its own
    } catch (const std::exception& error) {  // what no event of a real engine leads to
      result.difference = detail::concat("record ", result.events + 1, " (", what, "): ", error.what());
      break;
    }
    ++result.events;
    const bool cut = record.empty();  // what the last cause led to may not have been written any more
    if (!cut) comparison.finish();
    const std::string& difference = comparison.difference();
    if (!difference.empty()) {
      result.difference = detail::concat("record ", result.events, " (", what, " at ", static_cast<double>(now) * 1e-9,
                                         " s): ", difference);
    }
  }
  result.actions = comparison.count();
  return result;
}

}  // namespace casync

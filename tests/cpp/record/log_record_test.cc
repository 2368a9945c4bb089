#include "record/log_record.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "casync/error.hpp"

namespace casync::test {
namespace {

EngineOptions options_read(const EngineOptions& written) {
  Bytes bytes;
  log::put(bytes, written);
  ByteReader reader(bytes);
  return log::get_options(reader);
}

TEST(LogRecord, AMemberThatIsNoneOfTheMembersIsRefused) {
  EngineOptions options;
  options.host_of = {0, 0, 1};
  options.member = 2;
  EXPECT_EQ(options_read(options).member, 2U);
  options.member = 3;
  EXPECT_THROW(options_read(options), CorruptPayload);
  options.member = 0;
  options.host_of.clear();
  EXPECT_THROW(options_read(options), CorruptPayload);
}

TEST(LogRecord, TimesThatCannotBeAddedAreRefused) {
  EngineOptions options;
  options.host_of = {0};
  options.heartbeat.timeout = kLongestTime;
  EXPECT_EQ(options_read(options).heartbeat.timeout, kLongestTime);
  for (const Nanoseconds time : {kLongestTime + 1, std::numeric_limits<Nanoseconds>::max(), Nanoseconds{-1}}) {
    options.heartbeat.timeout = time;
    EXPECT_THROW(options_read(options), CorruptPayload) << time;
  }
}

}  // namespace
}  // namespace casync::test

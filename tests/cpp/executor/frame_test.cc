// The bytes of frames, as FrameWriter and FrameReader see them.
#include "executor/frames/frame.hpp"

#include <gtest/gtest.h>

#include <string>

#include "casync/error.hpp"
#include "common/wire.hpp"

namespace casync {
namespace {

constexpr std::uint32_t kTag = 7;

Bytes frame_of(const FrameEntry& entry, std::string_view follows) {
  FrameWriter writer(kTag, 1024);
  writer.append(entry, bytes_of(follows));
  return std::move(writer.complete());
}

void read_all(const Bytes& head) {
  for (FrameReader reader(kTag, head); reader.next();) continue;
}

TEST(Frame, AReaderFindsWhatAWriterWrote) {
  FrameWriter writer(kTag, 1024);
  EXPECT_TRUE(writer.empty());
  writer.append({.kind = EntryKind::raw, .key = {1, 2, 3}, .size = 4}, bytes_of("four"));
  writer.append({.kind = EntryKind::body, .key = {4, 5, 6}, .size = 1'000'000}, {});
  const Bytes head = std::move(writer.complete());
  FrameReader reader(kTag, head);
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.entry().kind, EntryKind::raw);
  EXPECT_EQ(reader.entry().key.sequence, 2U);
  EXPECT_EQ(text_of(reader.bytes()), "four");
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.entry().key.tag, 6U);
  EXPECT_EQ(reader.entry().size, 1'000'000U);
  EXPECT_TRUE(reader.bytes().empty());
  EXPECT_FALSE(reader.next());
}

TEST(Frame, AWriterStartsAnewInTheMemoryOfTheLastFrame) {
  FrameWriter writer(kTag, 1024);
  writer.append({.size = 5}, bytes_of("first"));
  static_cast<void>(writer.complete());
  writer.clear();
  EXPECT_TRUE(writer.empty());
  writer.append({.size = 6}, bytes_of("second"));
  FrameReader reader(kTag, writer.complete());
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(text_of(reader.bytes()), "second");
  EXPECT_FALSE(reader.next());
}

TEST(Frame, AHeadIsFilledToItsLastByteAndNoFurther) {
  constexpr std::size_t kHead = 256;
  FrameWriter writer(kTag, kHead);
  const std::string largest(FrameWriter::room(kHead), 'x');
  EXPECT_FALSE(writer.has_room(largest.size() + 1));
  EXPECT_THROW(writer.append({}, bytes_of(largest + 'x')), InternalError);
  EXPECT_TRUE(writer.empty());
  writer.append({}, bytes_of(largest));
  EXPECT_EQ(writer.complete().size(), kHead);
  EXPECT_FALSE(writer.has_room(0));
  EXPECT_EQ(FrameWriter::room(10), 0U);
}

TEST(Frame, AChangedBitIsNoticedExceptInRawElements) {
  for (const EntryKind kind : {EntryKind::control, EntryKind::raw, EntryKind::encoded, EntryKind::encoded_body}) {
    const Bytes head = frame_of({.kind = kind, .size = 4}, "four");
    EXPECT_NO_THROW(read_all(head));
    for (std::size_t i = 0; i < head.size(); ++i) {
      Bytes changed = head;
      changed[i] ^= std::byte{1};
      const bool element = kind == EntryKind::raw && i + 4 >= head.size();
      if (element) {
        EXPECT_NO_THROW(read_all(changed));
      } else {
        EXPECT_THROW(read_all(changed), CorruptPayload) << "byte " << i;
      }
    }
  }
}

TEST(Frame, AFrameCutShortOrOfAnotherSessionIsNone) {
  const Bytes head = frame_of({.size = 4}, "four");
  for (std::size_t size = 0; size < head.size(); ++size) {
    EXPECT_THROW(read_all({head.begin(), head.begin() + static_cast<std::ptrdiff_t>(size)}), CorruptPayload) << size;
  }
  EXPECT_THROW(FrameReader(kTag + 1, head), CorruptPayload);
}

}  // namespace
}  // namespace casync

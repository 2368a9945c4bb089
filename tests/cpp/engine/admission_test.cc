// Memory in one order: strictly oldest first, limits only to who waits.
#include "engine/admission.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

std::vector<Admission::Ticket> tickets(std::initializer_list<std::size_t> bytes) {
  std::vector<Admission::Ticket> list;
  for (const std::size_t size : bytes) list.push_back({0, static_cast<std::uint32_t>(list.size()), size});
  return list;
}

std::vector<std::uint32_t> opened(Admission& admission) {
  std::vector<std::uint32_t> list;
  for (Admission::Ticket ticket; admission.next(ticket);) list.push_back(ticket.partition);
  return list;
}

TEST(Admission, OpensInOrderAndNeverPastOneThatDoesNotFit) {
  Admission admission(100, 2);
  EXPECT_EQ(admission.begin(tickets({60, 60, 10})), 0U);
  EXPECT_EQ(opened(admission), (std::vector<std::uint32_t>{0}));  // the third would fit, but its turn has not come
  admission.release(60);
  EXPECT_EQ(opened(admission), (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(admission.used(), 70U);
  EXPECT_EQ(admission.peak(), 70U);
}

TEST(Admission, NumbersTicketsOverAllOperations) {
  Admission admission(100, 2);
  EXPECT_EQ(admission.begin(tickets({1, 1})), 0U);
  EXPECT_EQ(admission.begin(tickets({1})), 2U);
  EXPECT_EQ(admission.begin(tickets({})), 3U);
  EXPECT_EQ(admission.begin(tickets({1})), 3U);
}

TEST(Admission, ATicketLargerThanThePoolRunsAlone) {
  Admission admission(100, 2);
  admission.begin(tickets({10, 500, 0}));
  EXPECT_EQ(opened(admission), (std::vector<std::uint32_t>{0}));
  admission.release(10);
  EXPECT_EQ(opened(admission), (std::vector<std::uint32_t>{1}));
  admission.release(500);
  EXPECT_EQ(opened(admission), (std::vector<std::uint32_t>{2}));
}

TEST(Admission, HasFreeBytesForWhatWouldGetItsMemoryAtOnce) {
  Admission admission(100, 2);
  EXPECT_EQ(admission.free_bytes(), 100U);
  admission.begin(tickets({30, 60}));
  EXPECT_EQ(admission.free_bytes(), 10U) << "whether they are opened or not";
  opened(admission);
  EXPECT_EQ(admission.free_bytes(), 10U);
  admission.begin(tickets({60}));
  EXPECT_EQ(admission.free_bytes(), 0U);
  admission.release(30);
  EXPECT_EQ(admission.free_bytes(), 0U) << "what waits comes first";
  opened(admission);
  admission.release(60);
  EXPECT_EQ(admission.free_bytes(), 40U);
  EXPECT_GT(Admission(0, 2).free_bytes(), 0U) << "something must run";
}

TEST(Admission, TellsEachLimitOnceAndOnlyToWhoWaits) {
  Admission admission(100, 3);
  admission.begin(tickets({10, 10}));
  opened(admission);
  EXPECT_TRUE(admission.credit_limits().empty());
  admission.want_credit(2);
  admission.want_credit(2);
  using Limits = std::vector<std::pair<std::uint32_t, std::uint64_t>>;
  EXPECT_EQ(admission.credit_limits(), (Limits{{2, 2}}));
  admission.want_credit(2);
  EXPECT_TRUE(admission.credit_limits().empty());
}

TEST(Admission, APeersLimitBoundsWhatIsSentToIt) {
  Admission admission(100, 2);
  EXPECT_FALSE(admission.may_send(1, 0));
  admission.allow(1, 3);
  EXPECT_TRUE(admission.may_send(1, 2));
  EXPECT_FALSE(admission.may_send(1, 3));
}

}  // namespace
}  // namespace casync

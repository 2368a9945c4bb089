#include "planner/request.hpp"

#include <gtest/gtest.h>

#include "casync/error.hpp"

namespace casync {
namespace {

using Specs = std::vector<std::string>;

TEST(ParseAuto, OtherTextIsNoAuto) {
  for (const char* text : {"", "none", "onebit", "automatic", "onebit(auto)"}) EXPECT_FALSE(parse_auto(text)) << text;
}

TEST(ParseAuto, BareAutoNamesNothing) {
  EXPECT_EQ(parse_auto("auto"), Specs{});
  EXPECT_EQ(parse_auto(" auto "), Specs{});
}

TEST(ParseAuto, CommasWithinBracketsBelongToTheCodec) {
  EXPECT_EQ(parse_auto("auto(onebit)"), Specs{"onebit"});
  EXPECT_EQ(parse_auto("auto( onebit , terngrad(bits=4) )"), (Specs{"onebit", "terngrad(bits=4)"}));
  EXPECT_EQ(parse_auto("auto(dgc(ratio=0.1, clip=1), none)"), (Specs{"dgc(ratio=0.1, clip=1)", "none"}));
}

TEST(ParseAuto, WhatCannotBeReadIsRefused) {
  for (const char* text :
       {"auto(", "auto()", "auto(,)", "auto(onebit", "auto(onebit,)", "auto(a))", "auto(a)(b)", "auto((a)"}) {
    EXPECT_THROW(parse_auto(text), InvalidArgument) << text;
  }
}

}  // namespace
}  // namespace casync

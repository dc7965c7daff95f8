"""Partitioned consumer groups, compatible with synadia's pcgroups 0.2; groups of 0.1 can be converted."""

from natty.consuming.dead_letters import TooManyDeliveriesError
from natty.groups.admin import GroupAdmin, MemberState, list_groups
from natty.groups.elastic import Change, ElasticAdmin
from natty.groups.group import ElasticGroup, StaticGroup
from natty.groups.joining import JoinOptions, JoinSettings, MemberEvent, State
from natty.groups.member import Membership
from natty.groups.partitions import MemberMapping, PartitioningFilter, key_of, partition_of
from natty.groups.records import ElasticRecord, Record, StaticRecord
from natty.groups.static import StaticAdmin

__all__ = [
    "Change",
    "ElasticAdmin",
    "ElasticGroup",
    "ElasticRecord",
    "GroupAdmin",
    "JoinOptions",
    "JoinSettings",
    "MemberEvent",
    "MemberMapping",
    "MemberState",
    "Membership",
    "PartitioningFilter",
    "Record",
    "State",
    "StaticAdmin",
    "StaticGroup",
    "StaticRecord",
    "TooManyDeliveriesError",
    "key_of",
    "list_groups",
    "partition_of",
]
